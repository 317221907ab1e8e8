#include "lib/fetch/part.h"

#include "lib/base/clock.h"
#include "lib/base/file.h"
#include "lib/json/json.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_CHUNKS (1u << 20)

enum { MISSING, BUSY, DONE };

struct part {
    char *path, *note, *final, *mark; /* <name>.part, <name>.part.json, <name> */
    int fd;
    uint64_t bytes, chunk_bytes, resumed;
    size_t n_chunks, prefix; /* chunks from the start that are done */
    uint8_t *state;
    bool woken;
    pthread_mutex_t lock;
    pthread_cond_t more;
};

static uint64_t end_of(const struct part *p, size_t chunk)
{
    uint64_t end = (chunk + 1) * p->chunk_bytes;
    return end < p->bytes ? end : p->bytes;
}

static void advance(struct part *p)
{
    while (p->prefix < p->n_chunks && p->state[p->prefix] == DONE)
        p->prefix++;
}

/* The note: a digit a chunk would be long; runs of done chunks as [first, count, …]. */
static void write_note(struct part *p)
{
    CLEANUP(json_decrefp) json_t *runs = json_array();
    if (!*p->mark)
        return;
    for (size_t i = 0; i < p->n_chunks; i++) {
        size_t n = 0;
        while (i + n < p->n_chunks && p->state[i + n] == DONE)
            n++;
        if (!n)
            continue;
        json_array_append_new(runs, json_integer((json_int_t)i));
        json_array_append_new(runs, json_integer((json_int_t)n));
        i += n;
    }
    CLEANUP(json_decrefp)
    json_t *o = json_pack("{s:s, s:I, s:I, s:O}", "mark", p->mark, "bytes", (json_int_t)p->bytes,
                          "chunk", (json_int_t)p->chunk_bytes, "done", runs);
    CLEANUP(free_charp) char *fresh = xasprintf("%s.new", p->note);
    if (!o || json_dump_file(o, fresh, JSON_COMPACT) || rename(fresh, p->note))
        unlink(p->note); /* then it begins anew next time: slow, not wrong */
}

static void read_note(struct part *p)
{
    struct stat st;
    CLEANUP(json_decrefp) json_t *o = json_parse_file(p->note, 64u << 20, NULL);
    bool same = *p->mark && strcmp(json_str_at(o, "mark", ""), p->mark) == 0 &&
                json_int_at(o, "bytes", -1) == (int64_t)p->bytes &&
                json_int_at(o, "chunk", -1) == (int64_t)p->chunk_bytes;
    if (!same || fstat(p->fd, &st) || (uint64_t)st.st_size != p->bytes)
        return;
    const json_t *runs = json_object_get(o, "done");
    for (size_t i = 0; i + 1 < json_array_size(runs); i += 2) {
        json_int_t first = json_integer_value(json_array_get(runs, i));
        json_int_t n = json_integer_value(json_array_get(runs, i + 1));
        if (first < 0 || n < 0 || (uint64_t)first > p->n_chunks ||
            (uint64_t)n > p->n_chunks - (uint64_t)first)
            continue;
        memset(p->state + first, DONE, (size_t)n);
    }
    for (size_t i = 0; i < p->n_chunks; i++)
        p->resumed += p->state[i] == DONE ? end_of(p, i) - i * p->chunk_bytes : 0;
    advance(p);
}

static int reserve(struct part *p, struct err *e)
{
    struct stat st;
    if (fstat(p->fd, &st) == 0 && (uint64_t)st.st_size == p->bytes)
        return 0;
    int code = ftruncate(p->fd, 0) ? errno : 0;
    if (!code && p->bytes && fallocate(p->fd, 0, 0, (off_t)p->bytes))
        code = errno != EOPNOTSUPP                 ? errno
               : ftruncate(p->fd, (off_t)p->bytes) ? errno
                                                   : 0; /* where room can't be taken at once */
    if (code)
        return err_set(e, code, "no room for %.1f GiB at %s: %s", (double)p->bytes / (1 << 30),
                       p->path, strerror(code));
    return 0;
}

int part_open(const char *dir, const char *name, uint64_t bytes, uint64_t chunk_bytes,
              const char *mark, struct part **out, struct err *e)
{
    while (bytes / chunk_bytes >= MAX_CHUNKS)
        chunk_bytes *= 2;
    struct part *p = xcalloc(1, sizeof *p);
    *p = (struct part){.path = xasprintf("%s/%s.part", dir, name),
                       .note = xasprintf("%s/%s.part.json", dir, name),
                       .final = xasprintf("%s/%s", dir, name),
                       .mark = xstrdup(mark),
                       .bytes = bytes,
                       .chunk_bytes = chunk_bytes,
                       .n_chunks = (size_t)((bytes + chunk_bytes - 1) / chunk_bytes)};
    p->state = xcalloc(p->n_chunks + 1, 1);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->more, NULL);
    p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    int r = p->fd < 0 ? err_set(e, errno, "can't make %s: %s", p->path, strerror(errno)) : 0;
    if (!r) {
        read_note(p);
        r = reserve(p, e);
    }
    if (r) {
        if (p->fd >= 0 && r == -ENOSPC)
            unlink(p->path);
        part_free(p);
        return r;
    }
    *out = p;
    return 0;
}

void part_free(struct part *p)
{
    close_fdp(&p->fd);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->more);
    free(p->state);
    free(p->path);
    free(p->note);
    free(p->final);
    free(p->mark);
    free(p);
}

int part_finish(struct part *p, struct err *e)
{
    if (fsync(p->fd) || fchmod(p->fd, 0444) || rename(p->path, p->final))
        return err_set(e, errno, "can't keep %s: %s", p->final, strerror(errno));
    unlink(p->note);
    return 0;
}

void part_discard(struct part *p)
{
    unlink(p->path);
    unlink(p->note);
}

uint64_t part_bytes(const struct part *p)
{
    return p->bytes;
}

uint64_t part_resumed_bytes(const struct part *p)
{
    return p->resumed;
}

int part_fd(const struct part *p)
{
    return p->fd;
}

bool part_claim(struct part *p, size_t *chunk, uint64_t *offset, uint64_t *len)
{
    bool found = false;
    pthread_mutex_lock(&p->lock);
    for (size_t i = p->prefix; i < p->n_chunks && !found; i++) {
        if (p->state[i] != MISSING)
            continue;
        p->state[i] = BUSY;
        *chunk = i;
        *offset = i * p->chunk_bytes;
        *len = end_of(p, i) - *offset;
        found = true;
    }
    pthread_mutex_unlock(&p->lock);
    return found;
}

void part_done(struct part *p, size_t chunk)
{
    uint64_t from = chunk * p->chunk_bytes;
    /* on its way to the disk already, so that the fsync in the end has little left to do */
    (void)sync_file_range(p->fd, (off_t)from, (off_t)(end_of(p, chunk) - from),
                          SYNC_FILE_RANGE_WRITE);
    pthread_mutex_lock(&p->lock);
    p->state[chunk] = DONE;
    advance(p);
    write_note(p);
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
}

void part_unclaim(struct part *p, size_t chunk)
{
    pthread_mutex_lock(&p->lock);
    p->state[chunk] = MISSING;
    pthread_mutex_unlock(&p->lock);
}

int part_write(struct part *p, uint64_t offset, struct str data, struct err *e)
{
    while (data.n) {
        ssize_t n = pwrite(p->fd, data.p, data.n, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(e, errno, "can't write %s: %s", p->path, strerror(errno));
        data = (struct str){data.p + n, data.n - (size_t)n};
        offset += (uint64_t)n;
    }
    return 0;
}

void part_wake(struct part *p)
{
    pthread_mutex_lock(&p->lock);
    p->woken = true;
    pthread_cond_broadcast(&p->more);
    pthread_mutex_unlock(&p->lock);
}

uint64_t part_wait(struct part *p, uint64_t have, unsigned timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&p->lock);
    int late = 0;
    uint64_t there;
    for (;;) {
        uint64_t end = p->prefix * p->chunk_bytes;
        there = end < p->bytes ? end : p->bytes;
        if (there > have || p->woken || late)
            break;
        late = pthread_cond_timedwait(&p->more, &p->lock, &until);
    }
    p->woken = false;
    pthread_mutex_unlock(&p->lock);
    return there;
}

bool part_idle(struct part *p)
{
    bool idle = true;
    pthread_mutex_lock(&p->lock);
    for (size_t i = p->prefix; i < p->n_chunks; i++)
        idle &= p->state[i] != BUSY;
    pthread_mutex_unlock(&p->lock);
    return idle;
}
