#include "cli/common.h"

#include "lib/json/json.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

int cli_mkdirs(const char *path, struct err *e)
{
    CLEANUP(free_charp) char *p = xstrdup(path);
    for (char *s = p + 1;; s++) {
        if (*s != '/' && *s)
            continue;
        char was = *s;
        *s = 0;
        if (mkdir(p, 0700) && errno != EEXIST)
            return err_set(e, errno, "can't make the folder %s: %s", p, strerror(errno));
        if (!was)
            return 0;
        *s = was;
    }
}

char *cli_program(const char *name)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    char *slash = strrchr(path, '/');
    return xasprintf("%.*s/%s", slash ? (int)(slash - path) : 0, path, name);
}

char *cli_models_dir(void)
{
    const char *cache = getenv("BATON_CACHE"), *home = getenv("HOME");
    if (cache && *cache)
        return xasprintf("%s/models", cache);
    return xasprintf("%s/.cache/baton/models", home ? home : "");
}

static char *default_dir(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    if (state && *state == '/')
        return xasprintf("%s/baton", state);
    return xasprintf("%s/.local/state/baton", home ? home : "");
}

static char *absolute(const char *path)
{
    char here[4096];
    if (*path == '/')
        return xstrdup(path);
    if (!getcwd(here, sizeof here))
        return xstrdup(path);
    return xasprintf("%s/%s", here, path);
}

/* The supervisor holds a lock on a file for as long as it lives: no pid can lie. */
static int supervisor_pid(const char *dir)
{
    CLEANUP(free_charp) char *lock = xasprintf("%s/supervisor.lock", dir);
    CLEANUP(close_fdp) int fd = open(lock, O_RDWR | O_CLOEXEC);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    CLEANUP(free_charp) char *path = xasprintf("%s/supervisor.json", dir);
    CLEANUP(json_decrefp) json_t *o = json_parse_file(path, 4096, NULL);
    return (int)json_int_at(o, "pid", 0);
}

int cluster_find(const char *dir, struct cluster *out, struct err *e)
{
    struct stat st;
    *out = (struct cluster){.dir = dir && *dir ? absolute(dir) : default_dir()};
    if (stat(out->dir, &st) == 0 && !S_ISDIR(st.st_mode)) {
        int r = err_set(e, ENOTDIR, "%s is not a folder", out->dir);
        cluster_fini(out);
        return r;
    }
    out->kubeconfig = xasprintf("%s/kubeconfig", out->dir);
    CLEANUP(free_charp) char *path = xasprintf("%s/up.json", out->dir);
    CLEANUP(json_decrefp) json_t *o = json_parse_file(path, 65536, NULL);
    out->known = o != NULL;
    out->router_port = (uint64_t)json_int_at(o, "router_port", ROUTER_PORT_DEFAULT);
    out->supervisor = supervisor_pid(out->dir);
    return 0;
}

void cluster_refresh(struct cluster *c)
{
    c->supervisor = supervisor_pid(c->dir);
}

void cluster_fini(struct cluster *c)
{
    free(c->dir);
    free(c->kubeconfig);
    *c = (struct cluster){0};
}

int cluster_remember(const struct cluster *c, struct err *e)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/up.json", c->dir);
    CLEANUP(json_decrefp) json_t *o = json_pack("{s:I}", "router_port", (json_int_t)c->router_port);
    if (json_dump_file(o, path, JSON_COMPACT))
        return err_set(e, EIO, "can't write %s", path);
    return 0;
}

int cluster_client(const struct cluster *c, struct kube_client **out, struct err *e)
{
    struct kube_config kc;
    int r = kube_config_load(c->kubeconfig, &kc, e);
    if (r)
        return r;
    r = kube_client_new(NULL, &kc, "baton-cli", out, e);
    kube_config_fini(&kc);
    return r;
}

int cli_fail(const char *verb, const struct err *e)
{
    fprintf(stderr, "%sbaton %s: %s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", verb, e->msg);
    return 1;
}

void cli_options_first(int argc, char **argv, const char *const *flags_without_value)
{
    char **sorted = xcalloc((size_t)argc, sizeof *sorted);
    int n = 0;
    for (int pass = 0; pass < 2; pass++) {
        bool ended = false;
        for (int i = 1; i < argc; i++) {
            bool option = !ended && strncmp(argv[i], "--", 2) == 0 && argv[i][2];
            ended |= strcmp(argv[i], "--") == 0;
            bool takes_value = option && !strchr(argv[i], '=');
            for (const char *const *f = flags_without_value; takes_value && *f; f++)
                takes_value = strcmp(argv[i], *f) != 0;
            int words = takes_value && i + 1 < argc ? 2 : 1;
            for (int w = 0; w < words; w++) {
                if (option == (pass == 0))
                    sorted[n++] = argv[i + w];
            }
            i += words - 1;
        }
    }
    memcpy(argv + 1, sorted, (size_t)n * sizeof *sorted);
    free(sorted);
}

static bool line_open;

static void show(const char *mark, const char *fmt, va_list ap)
{
    bool terminal = isatty(STDERR_FILENO);
    char text[512];
    static char last[512];
    vsnprintf(text, sizeof text, fmt, ap);
    if (!terminal && strcmp(text, last) == 0)
        return;
    memcpy(last, text, sizeof last);
    if (terminal)
        fprintf(stderr, "\r\033[K%s %s", mark, text);
    else
        fprintf(stderr, "%s %s\n", mark, text);
    line_open = terminal;
    fflush(stderr);
}

void progress(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    show("…", fmt, ap);
    va_end(ap);
}

void progress_done(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    show("✓", fmt, ap);
    va_end(ap);
    if (line_open)
        fputc('\n', stderr);
    line_open = false;
}
