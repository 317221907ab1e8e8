/* A ring of lines, and a file when asked for. */
#include "controller/scaling.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/decide/scale_record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define FILE_MAX (256ll << 20) /* then it is renamed to FILE.old and begun again */

struct line {
    char *namespace, *infd, *text;
    size_t n;
};
struct decisions {
    struct line line[SCALING_DECISIONS];
    size_t first, n, bytes;
    char *path;
    int fd;
};

static void open_file(struct decisions *d)
{
    d->fd = open(d->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (d->fd < 0)
        log_error("the decision log can't be opened", LS("file", d->path),
                  LS("why", strerror(errno)));
}

struct decisions *decisions_new(const char *file)
{
    struct decisions *d = xcalloc(1, sizeof *d);
    d->fd = -1;
    d->path = xstrdup(file);
    if (*file)
        open_file(d);
    return d;
}

static void drop_first(struct decisions *d)
{
    struct line *l = &d->line[d->first];
    d->bytes -= l->n;
    free(l->namespace);
    free(l->infd);
    free(l->text);
    *l = (struct line){0};
    d->first = (d->first + 1) % SCALING_DECISIONS;
    d->n--;
}

void decisions_free(struct decisions *d)
{
    if (!d)
        return;
    while (d->n)
        drop_first(d);
    if (d->fd >= 0)
        close(d->fd);
    free(d->path);
    free(d);
}

/* A line is written whole or not at all: a cut one would not replay. */
static void append(struct decisions *d, const struct buf *text)
{
    if (d->fd < 0)
        return;
    off_t at = lseek(d->fd, 0, SEEK_END);
    if (at > FILE_MAX) {
        CLEANUP(free_charp) char *old = xasprintf("%s.old", d->path);
        close(d->fd);
        if (rename(d->path, old))
            log_warn("the decision log can't be renamed", LS("why", strerror(errno)));
        open_file(d);
        at = 0;
    }
    ssize_t rc = d->fd >= 0 ? write(d->fd, text->data, text->n) : (ssize_t)text->n;
    if (rc == (ssize_t)text->n)
        return;
    log_warn("a decision was not logged", LS("file", d->path),
             LS("why", rc < 0 ? strerror(errno) : "the disk is full"));
    if (rc > 0 && ftruncate(d->fd, at))
        log_warn("the decision log ends in half a line", LS("why", strerror(errno)));
}

static void remember(struct decisions *d, const struct kube_infd *infd, const struct buf *text)
{
    while (d->n && (d->n == SCALING_DECISIONS || d->bytes + text->n > SCALING_DECISION_MAX))
        drop_first(d);
    d->line[(d->first + d->n++) % SCALING_DECISIONS] = (struct line){
        xstrdup(infd->meta.namespace), xstrdup(infd->meta.name), str_dup(buf_view(text)), text->n};
    d->bytes += text->n;
}

void decisions_add(struct decisions *d, const struct scale_plan *p, const struct kube_infd *infd,
                   const char *instance)
{
    char at[CLOCK_RFC3339_MAX];
    struct buf text;
    struct scale_about about = {clock_rfc3339(clock_wall_ns(), 3, at), infd->meta.namespace,
                                infd->meta.name, instance};
    CLEANUP(json_decrefp) json_t *record = scale_record(p, &about);
    buf_init(&text, SCALE_RECORD_BYTES);
    if (record && !scale_record_write(record, &text) && !buf_cstr(&text, "\n")) {
        append(d, &text);
        remember(d, infd, &text);
    } else {
        log_warn("a decision is too large to keep", LS("infd", infd->meta.name));
    }
    buf_fini(&text);
}

static bool is_of(const struct line *l, const char *namespace, const char *infd)
{
    return (!namespace || strcmp(namespace, l->namespace) == 0) &&
           (!infd || strcmp(infd, l->infd) == 0);
}

int decisions_write(const struct decisions *d, const char *namespace, const char *infd, size_t most,
                    struct buf *out)
{
    size_t skip = 0, matching = 0;
    int rc = 0;
    for (size_t i = 0; i < d->n; i++)
        matching += is_of(&d->line[(d->first + i) % SCALING_DECISIONS], namespace, infd);
    skip = matching > most ? matching - most : 0;
    for (size_t i = 0; i < d->n && !rc; i++) {
        const struct line *l = &d->line[(d->first + i) % SCALING_DECISIONS];
        if (!is_of(l, namespace, infd))
            continue;
        if (skip)
            skip--;
        else
            rc = buf_append(out, l->text, l->n);
    }
    return rc;
}
