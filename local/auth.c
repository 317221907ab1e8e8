#include "local/auth.h"
#include "lib/base/file.h"

#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>

#define MAX_ISSUED 4096

static char *new_token(void)
{
    uint8_t b[32];
    char hex[65];
    rng_secret(b, sizeof b);
    str_to_hex(b, sizeof b, hex);
    return xstrdup(hex);
}

static struct user *add_user(struct server *s, char *token, const char *name, const char *uid,
                             json_t *groups)
{
    struct user *u = xcalloc(1, sizeof *u);
    *u = (struct user){.token = token,
                       .name = xstrdup(name),
                       .uid = xstrdup(uid),
                       .groups = groups,
                       .next = s->users};
    s->users = u;
    return u;
}

static void free_user(struct user *u)
{
    OPENSSL_cleanse(u->token, strlen(u->token));
    free(u->token);
    free(u->name);
    free(u->uid);
    json_decref(u->groups);
    free(u);
}

void auth_free(struct server *s)
{
    while (s->users) {
        struct user *u = s->users;
        s->users = u->next;
        free_user(u);
    }
}

static json_t *split_groups(struct str g)
{
    json_t *out = json_array();
    struct str head;
    while (g.n) {
        g = str_cut(g, ',', &head);
        head = str_trim(head);
        if (head.n)
            json_array_append_new(out, json_stringn(head.p, head.n));
    }
    return out;
}

static void load_line(struct server *s, struct str line)
{
    struct str token, name, uid, rest = str_cut(line, ',', &token);
    rest = str_cut(rest, ',', &name);
    rest = str_cut(rest, ',', &uid);
    if (token.n < 16 || !name.n)
        return;
    if (rest.n >= 2 && rest.p[0] == '"')
        rest = (struct str){rest.p + 1, rest.n - 2};
    CLEANUP(free_charp) char *n = str_dup(name);
    CLEANUP(free_charp) char *u = str_dup(uid);
    add_user(s, str_dup(token), n, u, split_groups(rest));
}

int auth_load(struct server *s, struct err *e)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/tokens", s->data_dir);
    CLEANUP(free_charp) char *text = file_read(path, 1 << 20, e);
    if (!text)
        return e && e->code == ENOENT ? 0 : -EIO;
    struct str rest = str_c(text), line;
    while (rest.n) {
        rest = str_cut(rest, '\n', &line);
        load_line(s, str_trim(line));
    }
    return 0;
}

static int save(struct server *s, struct err *e)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/tokens", s->data_dir);
    struct buf b;
    buf_init(&b, 1 << 20);
    int rc = 0;
    for (const struct user *u = s->users; u && !rc; u = u->next) {
        size_t i;
        json_t *g;
        if (u->expires_ns)
            continue;
        rc = buf_printf(&b, "%s,%s,%s,\"", u->token, u->name, u->uid);
        json_array_foreach (u->groups, i, g)
            if (!rc)
                rc = buf_printf(&b, "%s%s", i ? "," : "", json_string_value(g));
        if (!rc)
            rc = buf_cstr(&b, "\"\n");
    }
    if (!rc)
        rc = file_write(path, buf_view(&b), 0600, e);
    buf_fini(&b);
    return rc;
}

const struct user *auth_user(struct server *s, const char *name, struct err *e)
{
    for (const struct user *u = s->users; u; u = u->next)
        if (!u->expires_ns && !strcmp(u->name, name))
            return u;
    char uid[37];
    new_uid(uid);
    const struct user *u = add_user(s, new_token(), name, uid,
                                    json_pack("[s,s]", "system:masters", "system:authenticated"));
    if (save(s, e))
        return NULL;
    return u;
}

static void drop_expired(struct server *s)
{
    uint64_t now = clock_wall_ns();
    size_t issued = 0;
    for (struct user **p = &s->users; *p;) {
        struct user *u = *p;
        issued += u->expires_ns != 0;
        if (u->expires_ns && (u->expires_ns < now || issued > MAX_ISSUED)) {
            *p = u->next;
            free_user(u);
        } else {
            p = &u->next;
        }
    }
}

const struct user *auth_by_token(struct server *s, const char *token)
{
    size_t n = strlen(token);
    for (const struct user *u = s->users; u; u = u->next)
        if (strlen(u->token) == n && !CRYPTO_memcmp(u->token, token, n) &&
            (!u->expires_ns || u->expires_ns > clock_wall_ns()))
            return u;
    return NULL;
}

const struct user *auth_request(struct server *s, const struct httpd_req *req)
{
    const char *h = httpd_header(req, "Authorization");
    if (!h || strncasecmp(h, "Bearer ", 7))
        return NULL;
    CLEANUP(free_charp) char *token = str_dup(str_trim(str_c(h + 7)));
    return auth_by_token(s, token);
}

const struct user *auth_service_account(struct server *s, const char *ns, const char *name,
                                        const char *sa_uid, uint64_t expires_ns)
{
    drop_expired(s);
    CLEANUP(free_charp) char *full = xasprintf("system:serviceaccount:%s:%s", ns, name);
    json_t *groups =
        json_pack("[s,o,s]", "system:serviceaccounts",
                  json_sprintf("system:serviceaccounts:%s", ns), "system:authenticated");
    struct user *u = add_user(s, new_token(), full, sa_uid, groups);
    u->expires_ns = expires_ns;
    return u;
}

json_t *auth_user_info(const struct user *u)
{
    return json_pack("{s:s,s:s,s:O}", "username", u->name, "uid", u->uid, "groups", u->groups);
}

static char *base64(const char *text)
{
    size_t n = strlen(text);
    unsigned char *out = xmalloc((n + 2) / 3 * 4 + 1);
    EVP_EncodeBlock(out, (const unsigned char *)text, (int)n);
    return (char *)out;
}

char *auth_kubeconfig(const struct server *s, const struct user *u)
{
    CLEANUP(free_charp) char *ca = base64(s->ca_pem);
    return xasprintf("apiVersion: v1\nkind: Config\ncurrent-context: baton\n"
                     "clusters:\n- name: baton\n  cluster:\n    server: %s\n"
                     "    certificate-authority-data: %s\n"
                     "contexts:\n- name: baton\n  context:\n    cluster: baton\n    user: %s\n"
                     "    namespace: default\n"
                     "users:\n- name: %s\n  user:\n    token: %s\npreferences: {}\n",
                     s->url, ca, u->name, u->name, u->token);
}
