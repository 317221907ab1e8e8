/* The embedded API server (local/) in the simulation: its store in memory, no certificates, and a
 * look at each committed write. */
#include "sim/sim.h"

#include "lib/kube/yaml.h"
#include "local/auth.h"
#include "local/server.h"
#include "local/tls.h"
#include "local/verbs.h"

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct server *server;
static struct proc process;

/* ---- what the linker puts in place of the originals ---- */

int sqlite3_open(const char *path, sqlite3 **db)
{
    (void)path;
    return sqlite3_open_v2(":memory:", db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
}

/* Once it is up, the server reads nothing back: its memory is enough. */
static bool no_disk;

int __real_sqlite3_step(sqlite3_stmt *st);
int __wrap_sqlite3_step(sqlite3_stmt *st);
int __wrap_sqlite3_step(sqlite3_stmt *st)
{
    return no_disk ? SQLITE_DONE : __real_sqlite3_step(st);
}

int __real_sqlite3_exec(sqlite3 *db, const char *sql, int (*fn)(void *, int, char **, char **),
                        void *ctx, char **error);
int __wrap_sqlite3_exec(sqlite3 *db, const char *sql, int (*fn)(void *, int, char **, char **),
                        void *ctx, char **error);
int __wrap_sqlite3_exec(sqlite3 *db, const char *sql, int (*fn)(void *, int, char **, char **),
                        void *ctx, char **error)
{
    return no_disk ? SQLITE_OK : __real_sqlite3_exec(db, sql, fn, ctx, error);
}

int __wrap_tls_load_or_make(const char *dir, const char *host, struct tls_files *out,
                            struct err *e);
int __wrap_tls_load_or_make(const char *dir, const char *host, struct tls_files *out, struct err *e)
{
    (void)dir;
    (void)host;
    (void)e;
    *out = (struct tls_files){xstrdup("ca"), xstrdup("cert"), xstrdup("key")};
    return 0;
}

void __real_watch_event(const struct event *ev, void *s);
void __wrap_watch_event(const struct event *ev, void *s);
void __wrap_watch_event(const struct event *ev, void *s)
{
    json_t *old = ev->prev ? ev->prev->doc : NULL;
    json_t *now = ev->type == EVENT_DELETED ? NULL : ev->obj->doc;
    const char *bucket = bucket_id(ev->bucket), *slash = strrchr(bucket, '/');
    const char *plural = slash ? slash + 1 : bucket;
    trace("event: %s %s %s rv %llu by %s",
          !old  ? "added"
          : now ? "modified"
                : "deleted",
          plural, ev->obj->key, (unsigned long long)ev->rv, net_writer());
    check_event(plural, old, now);
    if (strcmp(bucket, "pods") == 0)
        cluster_pod_event(old, now);
    __real_watch_event(ev, s);
}

/* ---- start ---- */

static void install(const char *path)
{
    struct err e = {0};
    json_t *o = yaml_parse_file(path, 1u << 20, &e);
    if (!o) {
        fprintf(stderr, "%s: %s\n", path, e.msg);
        exit(2);
    }
    int status = net_call("admin", "POST",
                          "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", NULL, o, NULL);
    if (status != 201) {
        fprintf(stderr, "%s: HTTP %d\n", path, status);
        exit(2);
    }
}

void server_make(const char *folder)
{
    static const char *const users[] = {
        "admin", "baton-controller", "baton-kubelet", "baton-agent", "user", "hpa"};
    static const char *const kinds[] = {"inferencedeployments", "workerpools", "nodeinventories"};
    struct err e = {0};
    proc_init(&process, "server");
    struct server_config c = {.loop = &process.loop, .data_dir = folder, .event_window = 2000};
    if (server_start(&c, &server, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(2);
    }
    for (size_t i = 0; i < sizeof users / sizeof *users; i++)
        server_token(users[i]);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        CLEANUP(free_charp) char *path = xasprintf("manifests/crds/%s.yaml", kinds[i]);
        install(path);
    }
    no_disk = true;
}

const char *server_token(const char *user)
{
    struct err e = {0};
    const struct user *u = auth_user(server, user, &e);
    ASSERT(u);
    return u->token;
}

static struct bucket *bucket(const char *plural)
{
    static const char *const groups[] = {"serving.baton.dev/", "policy/", "coordination.k8s.io/",
                                         "apps/"};
    static const char *const of[] = {"inferencedeployments workerpools nodeinventories",
                                     "poddisruptionbudgets", "leases", "controllerrevisions"};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (!strstr(of[i], plural))
            continue;
        CLEANUP(free_charp) char *id = xasprintf("%s%s", groups[i], plural);
        return store_bucket(server->store, id);
    }
    return store_bucket(server->store, plural);
}

json_t *server_get(const char *plural, const char *name)
{
    const struct obj *o = bucket_get(bucket(plural), SIM_SPACE, name);
    return o ? o->doc : NULL;
}

void server_each(const char *plural, bool (*fn)(json_t *doc, void *ctx), void *ctx)
{
    const struct bucket *b = bucket(plural);
    for (size_t i = 0; i < bucket_count(b); i++)
        if (!fn(bucket_at(b, i)->doc, ctx))
            return;
}
