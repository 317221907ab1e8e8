/* pack.h: viewed objects (view.h) as records of a few hundred bytes, for caches that hold very many
 * of them: has-bits, numbers and times of variable length, and strings that others have too as
 * numbers of a dictionary's words. A record is one allocation: pack_drop gives its words back and
 * frees it. Unpacking costs about a microsecond and copies no string: they stay in the record or
 * the dictionary. Records never leave the process. */
#pragma once
#include "lib/json/dict.h"
#include "lib/json/view.h"

struct pack;
/* Memory that an object is unpacked into: zero it before its first use; pack_room_fini frees. */
struct pack_room {
    void *data;
    size_t size;
};
/* Its size is bounded by what the object was read from. Never NULL. */
struct pack *pack_new(const struct view *v, const void *object, struct dict *words);
/* NULL frees nothing. */
void pack_drop(struct pack *p, const struct view *v, struct dict *words);
/* The object, in the room: valid until the room's next use; its strings as long as the record. */
void *pack_open(const struct pack *p, const struct view *v, const struct dict *words,
                struct pack_room *room);
void pack_room_fini(struct pack_room *room);
size_t pack_bytes(const struct pack *p);
