/* post.h: what the engine's thread and the transfer thread send each other: a list under a short
 * lock, and an eventfd that is readable while letters wait. Letters are one allocation each; the
 * taker frees them. Many senders, one taker. */
#pragma once
#include "lib/base/err.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct post_letter {
    struct post_letter *next;
};

struct post {
    pthread_mutex_t lock;
    struct post_letter *head, **tail;
    int fd;
};

int post_init(struct post *p, struct err *e) MUST_CHECK;
void post_fini(struct post *p); /* frees what nobody took */
void post_send(struct post *p, struct post_letter *l);
struct post_letter *post_take(struct post *p); /* all of them, oldest first; NULL: none */
