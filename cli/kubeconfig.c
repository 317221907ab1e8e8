#include "cli/kubeconfig.h"
#include "lib/kube/yaml.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONFIG_MAX     (4u << 20)
#define CREDENTIAL_MAX (1u << 20)

static const char *const lists[] = {"clusters", "users", "contexts"};

static const json_t *named(const json_t *config, const char *list, const char *name)
{
    size_t i;
    json_t *o;
    json_array_foreach (json_object_get(config, list), i, o) {
        if (strcmp(json_str_at(o, "name", ""), name) == 0)
            return o;
    }
    return NULL;
}

/* File names within are relative to the file that they stand in. */
static void make_absolute(json_t *entry, const char *part, const char *dir)
{
    static const char *const keys[] = {"certificate-authority", "client-certificate", "client-key",
                                       "tokenFile"};
    json_t *o = json_object_get(entry, part);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *file = json_string_value(json_object_get(o, keys[i]));
        if (file && *file && *file != '/')
            json_object_set_new(o, keys[i], json_sprintf("%s/%s", dir, file));
    }
}

static void merge(json_t *into, const json_t *from, const char *dir)
{
    static const char *const parts[] = {"cluster", "user", "context"};
    for (int i = 0; i < 3; i++) {
        size_t k;
        json_t *entry;
        json_array_foreach (json_object_get(from, lists[i]), k, entry) {
            if (named(into, lists[i], json_str_at(entry, "name", "")))
                continue;
            make_absolute(entry, parts[i], dir);
            json_array_append(json_object_get(into, lists[i]), entry);
        }
    }
    if (!*json_str_at(into, "current-context", "") && *json_str_at(from, "current-context", ""))
        json_object_set(into, "current-context", json_object_get(from, "current-context"));
}

static int merge_file(json_t *into, const char *path, bool must_exist, struct err *e)
{
    char real[4096];
    if (!realpath(path, real)) {
        if (errno == ENOENT && !must_exist)
            return 0;
        return err_set(e, errno, "%s: %s", path, strerror(errno));
    }
    CLEANUP(json_decrefp) json_t *o = yaml_parse_file(real, CONFIG_MAX, e);
    if (!o)
        return err_wrap(e, "%s", path);
    *strrchr(real, '/') = 0;
    merge(into, o, real);
    return 0;
}

static int read_all(const char *path, json_t *into, struct err *e)
{
    const char *env = getenv("KUBECONFIG"), *home = getenv("HOME");
    if (path && *path)
        return merge_file(into, path, true, e);
    if (!env || !*env) {
        CLEANUP(free_charp) char *dflt = xasprintf("%s/.kube/config", home ? home : "");
        return merge_file(into, dflt, false, e);
    }
    struct str rest = str_c(env), one;
    while (rest.n) {
        rest = str_cut(rest, ':', &one);
        CLEANUP(free_charp) char *file = str_dup(one);
        int rc = *file ? merge_file(into, file, false, e) : 0;
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- credentials by a program ---- */

_Noreturn static void be_plugin(const json_t *exec, int out)
{
    size_t i, n = json_array_size(json_object_get(exec, "args"));
    char **argv = xcalloc(n + 2, sizeof *argv);
    json_t *o;
    argv[0] = xstrdup(json_str_at(exec, "command", ""));
    json_array_foreach (json_object_get(exec, "args"), i, o)
        argv[i + 1] = xstrdup(json_string_value(o) ? json_string_value(o) : "");
    json_array_foreach (json_object_get(exec, "env"), i, o)
        setenv(json_str_at(o, "name", "BATON_UNNAMED"), json_str_at(o, "value", ""), 1);
    CLEANUP(free_charp)
    char *info = xasprintf("{\"apiVersion\":\"%s\",\"kind\":\"ExecCredential\","
                           "\"spec\":{\"interactive\":false}}",
                           json_str_at(exec, "apiVersion", "client.authentication.k8s.io/v1"));
    setenv("KUBERNETES_EXEC_INFO", info, 1);
    dup2(out, 1);
    execvp(argv[0], argv);
    _exit(127);
}

static json_t *run_plugin(const json_t *exec, struct err *e)
{
    int fds[2], status = 0;
    const char *command = json_str_at(exec, "command", "");
    if (pipe2(fds, O_CLOEXEC)) {
        err_set(e, errno, "no pipe: %s", strerror(errno));
        return NULL;
    }
    pid_t pid = fork();
    if (pid == 0)
        be_plugin(exec, fds[1]);
    close(fds[1]);
    CLEANUP(close_fdp) int in = fds[0];
    struct buf text;
    buf_init(&text, CREDENTIAL_MAX);
    char piece[4096];
    for (ssize_t n; (n = read(in, piece, sizeof piece)) > 0 || (n < 0 && errno == EINTR);) {
        if (n > 0 && buf_append(&text, piece, (size_t)n))
            break;
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status) {
        err_set(e, EACCES, "%s, which makes this user's credentials, failed%s", command,
                WIFEXITED(status) && WEXITSTATUS(status) == 127 ? ": it is not installed" : "");
        buf_fini(&text);
        return NULL;
    }
    json_t *o = json_parse(buf_view(&text), CREDENTIAL_MAX, 0, e);
    buf_fini(&text);
    return o;
}

static int from_plugin(const json_t *exec, struct kube_config *c, struct err *e)
{
    CLEANUP(json_decrefp) json_t *o = run_plugin(exec, e);
    const char *token = json_str_at(o, "status.token", NULL),
               *cert = json_str_at(o, "status.clientCertificateData", NULL),
               *key = json_str_at(o, "status.clientKeyData", NULL);
    if (!o)
        return -e->code;
    if (!token && !(cert && key))
        return err_set(e, EACCES, "%s made no credentials", json_str_at(exec, "command", ""));
    if (token)
        c->token = xstrdup(token);
    if (cert && key) {
        c->cert_pem = xstrdup(cert);
        c->key_pem = xstrdup(key);
    }
    return 0;
}

/* lib/kube reads one file: the chosen context alone goes into one that nobody else sees. */
static int load_chosen(const json_t *config, struct kube_config *out, struct err *e)
{
    char path[64];
    CLEANUP(close_fdp) int fd = memfd_create("kubeconfig", MFD_CLOEXEC);
    if (fd < 0 || json_dumpfd(config, fd, JSON_COMPACT))
        return err_set(e, EIO, "no memory for a kubeconfig");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return kube_config_load(path, out, e);
}

int kubeconfig_load(const char *path, const char *context, struct kube_config *out, struct err *e)
{
    CLEANUP(json_decrefp)
    json_t *all = json_pack("{s:[], s:[], s:[]}", lists[0], lists[1], lists[2]);
    int rc = read_all(path, all, e);
    if (rc)
        return rc;
    if (context && *context)
        json_object_set_new(all, "current-context", json_string(context));
    const char *name = json_str_at(all, "current-context", "");
    if (!*name)
        return err_set(e, ENOENT,
                       "no cluster is chosen: set KUBECONFIG, --kubeconfig or --context, or start "
                       "one on this machine with `baton up`");
    const json_t *ctx = named(all, "contexts", name);
    if (!ctx)
        return err_set(e, ENOENT, "the kubeconfig has no context \"%s\"", name);
    const json_t *user = named(all, "users", json_str_at(ctx, "context.user", ""));
    const json_t *exec = json_at(user, "user.exec");
    rc = load_chosen(all, out, e);
    if (rc || !exec || out->token || out->cert_pem)
        return rc;
    rc = from_plugin(exec, out, e);
    if (rc)
        kube_config_fini(out);
    return rc;
}
