#include "router/head.h"

#include "lib/fetch/remote.h"
#include "lib/fetch/source.h"
#include "lib/json/json.h"
#include "lib/llm/gguf.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MEMORY_DIR "/dev/shm"
#define FIRST      (4ull << 20)
#define HEAD_MAX   (256ull << 20) /* of a GGUF file: vocabularies end long before */
#define FILES_MAX  64

void head_remove(char *dir)
{
    DIR *d = dir ? opendir(dir) : NULL;
    struct dirent *x;
    while (d && (x = readdir(d))) {
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, x->d_name);
        if (x->d_name[0] != '.')
            unlink(path);
    }
    if (d)
        closedir(d);
    if (dir)
        rmdir(dir);
    free(dir);
}

struct sink {
    int fd;
    uint64_t at;
    struct err err;
};

static int to_file(struct str data, void *ctx)
{
    struct sink *s = ctx;
    while (data.n) {
        ssize_t n = pwrite(s->fd, data.p, data.n, (off_t)s->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(&s->err, errno, "no memory for a model's head: %s", strerror(errno));
        s->at += (uint64_t)n;
        data = (struct str){data.p + n, data.n - (size_t)n};
    }
    return 0;
}

static int read_piece(const struct remote *r, const struct remote_info *info, struct sink *s,
                      uint64_t to, struct err *e)
{
    unsigned ignored;
    if (to <= s->at)
        return 0;
    int rc = remote_read(r, info, s->at, to - s->at, to_file, s, &ignored, e);
    if (s->err.code && e)
        *e = s->err;
    return rc;
}

/* As much of a GGUF file as its header takes; its size is the file's. */
static int read_gguf(const struct remote *r, const struct remote_info *info, struct sink *s,
                     struct err *e)
{
    if (ftruncate(s->fd, (off_t)info->bytes))
        return err_set(e, errno, "no memory for a model's head: %s", strerror(errno));
    for (uint64_t want = FIRST;; want *= 4) {
        struct gguf *g;
        struct err bad;
        uint64_t to = want < info->bytes ? want : info->bytes;
        int rc = read_piece(r, info, s, to, e);
        if (rc)
            return rc;
        int fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 3);
        if (fd >= 0 && gguf_open_fd(fd, r->url, &g, &bad) == 0) {
            gguf_free(g);
            return 0;
        }
        if (to == info->bytes || want >= HEAD_MAX) {
            if (e)
                *e = bad;
            return -EINVAL;
        }
    }
}

static int get_file(const char *address, const char *secret, const char *dir, const char *name,
                    struct err *e)
{
    struct remote_info info;
    CLEANUP(free_charp)
    char *url = xasprintf("http://%s/v1/internal/model?file=%s", address, name);
    CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, name);
    struct remote r = {.url = url, .token = secret, .peer = true};
    int rc = remote_probe(&r, &info, e);
    if (rc)
        return rc;
    struct sink s = {.fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600)};
    if (s.fd < 0)
        return err_set(e, errno, "can't make %s: %s", path, strerror(errno));
    bool gguf = str_ends(str_c(name), STR(".gguf"));
    if (!gguf && info.bytes > HEAD_MAX)
        rc = err_set(e, EFBIG, "%s of the model is too large", name);
    else
        rc = gguf ? read_gguf(&r, &info, &s, e) : read_piece(&r, &info, &s, info.bytes, e);
    close(s.fd);
    return rc;
}

static bool name_ok(const char *name)
{
    if (!name || !source_name_safe(str_c(name)))
        return false;
    for (const char *p = name; *p; p++)
        if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
              strchr("._-", *p)))
            return false;
    return true;
}

/* All that one worker offers into dir; *single is the name of the only file, or empty. */
static int get_all(const char *address, const char *secret, const char *dir, char single[256],
                   struct err *e)
{
    struct buf text;
    unsigned ignored;
    CLEANUP(free_charp) char *url = xasprintf("http://%s/v1/internal/model?list", address);
    struct remote r = {.url = url, .token = secret, .peer = true};
    buf_init(&text, 1u << 16);
    int rc = remote_text(&r, &text, &ignored, e);
    CLEANUP(json_decrefp) json_t *names = rc ? NULL : json_parse(buf_view(&text), 1u << 16, 2, e);
    buf_fini(&text);
    size_t i, n = json_array_size(names);
    json_t *x;
    if (rc || !names)
        return rc ? rc : -EINVAL;
    if (!n || n > FILES_MAX)
        return err_set(e, ENOENT, "the worker at %s offers no model files", address);
    single[0] = 0;
    json_array_foreach (names, i, x) {
        const char *name = json_string_value(x);
        if (!name_ok(name))
            return err_set(e, EINVAL, "the worker at %s names a file strangely", address);
        if ((rc = get_file(address, secret, dir, name, e)))
            return rc;
        if (n == 1)
            snprintf(single, 256, "%s", name);
    }
    return 0;
}

int head_fetch(const struct head_from *from, char **dir, char **path, struct err *e)
{
    int rc = err_set(e, ENOENT, "no worker has told its tokenizer yet");
    for (size_t i = 0; i < from->n && rc; i++) {
        char *fresh = xstrdup(MEMORY_DIR "/baton-head-XXXXXX"), single[256];
        if (!mkdtemp(fresh)) {
            rc = err_set(e, errno, "no folder in " MEMORY_DIR ": %s", strerror(errno));
            free(fresh);
            return rc;
        }
        rc = get_all(from->addresses[i], from->secret, fresh, single, e);
        if (rc) {
            head_remove(fresh);
            continue;
        }
        *path = *single ? xasprintf("%s/%s", fresh, single) : xstrdup(fresh);
        *dir = fresh;
    }
    return rc;
}
