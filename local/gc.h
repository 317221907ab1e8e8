/* gc.h: garbage collection by owner references, namespace content, and what a namespace gets when
 * it is made. Work is noted by the write paths and done by gc_run() before the commit, so that a
 * client sees a deletion and its consequences together. */
#pragma once
#include "local/server_int.h"

struct gc;
struct gc *gc_new(void);
void gc_free(struct gc *g);
void gc_note_written(struct server *s, struct obj *o); /* new, or owner references changed */
void gc_note_removed(struct server *s, struct obj *o);
void gc_note_namespace(struct server *s, const char *name); /* was made */
void gc_note_foreground(struct server *s,
                        struct obj *o); /* is being deleted with foregroundDeletion */
void gc_run(struct server *s);
/* Removes this owner from its dependents (propagationPolicy Orphan). */
void gc_orphan(struct server *s, const struct obj *owner);
