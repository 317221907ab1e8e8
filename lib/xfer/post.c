#include "lib/xfer/post.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

int post_init(struct post *p, struct err *e)
{
    pthread_mutex_init(&p->lock, NULL);
    p->head = NULL;
    p->tail = &p->head;
    p->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return p->fd < 0 ? err_set(e, errno, "eventfd: %s", strerror(errno)) : 0;
}

void post_fini(struct post *p)
{
    for (struct post_letter *l = post_take(p), *next; l; l = next) {
        next = l->next;
        free(l);
    }
    close_fdp(&p->fd);
    pthread_mutex_destroy(&p->lock);
}

void post_send(struct post *p, struct post_letter *l)
{
    l->next = NULL;
    pthread_mutex_lock(&p->lock);
    bool first = !p->head;
    *p->tail = l;
    p->tail = &l->next;
    pthread_mutex_unlock(&p->lock);
    uint64_t one = 1;
    if (first)
        ASSERT(write(p->fd, &one, sizeof one) == sizeof one);
}

struct post_letter *post_take(struct post *p)
{
    uint64_t n;
    if (p->fd >= 0 && read(p->fd, &n, sizeof n) < 0 && errno != EAGAIN)
        return NULL;
    pthread_mutex_lock(&p->lock);
    struct post_letter *l = p->head;
    p->head = NULL;
    p->tail = &p->head;
    pthread_mutex_unlock(&p->lock);
    return l;
}
