/* verbs.h: the handlers of the verbs, and of watches. Each answers its call, now or (watch) over
 * time. */
#pragma once
#include "local/object.h"
#include "local/selector.h"

void verb_get(struct call *c);
void verb_list(struct call *c);
void verb_watch(struct call *c);
void verb_create(struct call *c);
void verb_update(struct call *c);
void verb_patch(struct call *c);
void verb_delete(struct call *c);
void verb_delete_collection(struct call *c);

/* list.c: the objects of a request's scope that a selector takes, as they were at `rv` (0: now).
 * References are taken; free with list_free. -1 with 410 when rv is older than the window. */
struct obj_list {
    struct obj **v;
    size_t n, cap;
};
int list_collect(struct call *c, const struct selector *sel, uint64_t rv, struct obj_list *out,
                 json_t **st) MUST_CHECK;
void list_free(struct obj_list *l);

void watch_close(struct watch *w); /* its exchange is over */
void watch_event(const struct event *ev, void *server);
void watch_tick(struct server *s);
size_t watch_count(const struct server *s);

/* patch.c: the body of a PATCH (all types but apply) carried out on a document that isn't stored as
 * such (Scale). */
int patch_view(struct call *c, const char *group_kind, json_t **doc, json_t **st) MUST_CHECK;
/* Options of DELETE from body and query. *body keeps the strings alive. */
int delete_options(struct call *c, struct delete_options *o, json_t **body, json_t **st) MUST_CHECK;

/* server.c: commits now what is due (waiting replies leave), if anything is. */
void server_commit(struct server *s);
void server_flush(struct server *s, const char *failure);
