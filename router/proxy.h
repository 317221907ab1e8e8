/* proxy.h: what proxy.c and send.c share. */
#pragma once
#include "router/router.h"

/* Between a lost event stream and giving up a request whose own connection still stands. */
#define LOST_GRACE_NS (500 * NS_PER_MS)

extern const struct conn_request job_callbacks;
/* Answers with j->fault, or waits and tries again where the continuation is exact. */
void job_failed(struct job *j, const char *reason, bool repeatable);
