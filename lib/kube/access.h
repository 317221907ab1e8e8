/* access.h: does the API server let this program do what it must? Asked by one
 * SelfSubjectAccessReview a right (authorization.k8s.io/v1; every authenticated user may ask) when
 * the program starts, again every 30 s while a right is missing and every hour else. What is
 * missing is one sentence that names verbs and resources, for /readyz, the log and conditions; the
 * gauge baton_kube_rights_missing counts it. A server without that API answers nothing: then
 * nothing is reported. One owner thread (the client's loop). */
#pragma once
#include "lib/kube/client.h"

struct access_right {
    const char *group;    /* "" for the core group; NULL ends a table */
    const char *resource; /* "pods", "pods/status" */
    const char *verbs;    /* "get,list,watch" */
    const char *name;     /* of one object; NULL: any */
    const char *where; /* a namespace; NULL: the namespace given to access_start; "*": asked without
                          one (cluster-scoped, or all of them) */
};

struct access;
/* `rights` must live as long as the program. `account` is what the sentence calls the program
 * ("baton-agent"). namespace NULL: all. on_change (may be NULL) is called when the sentence
 * changes. */
int access_start(struct kube_client *c, const char *account, const char *namespace,
                 const struct access_right *rights, void (*on_change)(void *ctx), void *ctx,
                 struct access **out, struct err *e) MUST_CHECK;
/* Before the client is freed; NULL is fine. */
void access_stop(struct access *a);
/* NULL when nothing is known to be missing (or a is NULL); borrowed until the next change. */
const char *access_missing(const struct access *a);
/* For /readyz: false with the reason until every right has once been there (or there was nobody to
 * ask), true from then on: a program that serves does not stop because a right went. NULL: true. */
bool access_ready(struct access *a, struct buf *why);
