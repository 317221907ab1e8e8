/* hash.h: the revision of a worker: a hash of what can't change in a running pod (model, layout,
 * engine, kvCache, template), not of its role nor of how many there are (DESIGN §3). Pods of equal
 * revision can take each other's role. */
#pragma once
#include "lib/base/str.h"

#define HASH_REVISION_MAX 17 /* 16 hex digits and NUL */

/* Parts are hashed with their names and lengths, so that no two lists of parts collide by
 * concatenation. NULL values differ from empty ones. A part named "role" or "replicas" would break
 * the rule above; callers leave them out. */
struct hash_part {
    const char *name, *value;
};
/* SHA-256, truncated. */
void hash_revision(const struct hash_part *parts, size_t n, char out[HASH_REVISION_MAX]);

/* Five characters of the alphabet that Kubernetes uses for generated names (nothing that spells
 * words or reads alike): the suffix of a pod's name. A function of its arguments: the same seed and
 * index give the same name, so that creating twice from one snapshot meets AlreadyExists. */
#define HASH_SUFFIX_MAX 6
void hash_suffix(uint64_t seed, uint64_t index, char out[HASH_SUFFIX_MAX]);
/* FNV-1a over a string, chained: the seed of the above. */
uint64_t hash_mix(uint64_t h, const char *s);
