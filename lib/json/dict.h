/* dict.h: strings that many objects share, kept once, counted and numbered ("True", a label's key).
 * A string becomes a word when it is asked for a second time, so that names and uids, which come
 * once, stay where they are. Words without references are forgotten. One thread. */
#pragma once
#include "lib/base/str.h"

#define DICT_WORD_MAX 256 /* longer strings are no words */

struct dict;
struct dict *dict_new(void);
void dict_free(struct dict *d);
/* True: *id is the word, with one more reference. False: not a word (yet). */
bool dict_take(struct dict *d, struct str s, uint32_t *id);
/* NUL-terminated; valid while there are references. */
const char *dict_text(const struct dict *d, uint32_t id);
void dict_drop(struct dict *d, uint32_t id);
size_t dict_count(const struct dict *d);
