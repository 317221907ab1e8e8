/* store.h: the node's cache of model files, on its NVMe (DESIGN §8, rung `cached`): one folder a
 * model below <models-dir>/fetched, named by its key (source.h), with a manifest when it is
 * complete. Within a budget: what nobody uses is dropped, least recently used first. A restarted
 * agent adopts what it finds; partly fetched models go on where they were. One owner thread;
 * entries live until store_drop. */
#pragma once
#include "lib/fetch/set.h"
#include "lib/fetch/source.h"

struct store;
struct store_entry {
    char key[SOURCE_KEY_MAX];
    char *source, *endpoint;
    char sha256[SHA_HEX]; /* of the set (set_digest) once complete; the pin, or "", before */
    struct set set;       /* when complete */
    uint64_t bytes, used_wall_ns;
    uint64_t begun_wall_ns;   /* when its files were last begun to be fetched or hashed */
    uint64_t checked_wall_ns; /* that, of the last time that they were found right; 0: by an earlier
                                 agent */
    bool complete;
    unsigned users; /* launchers, fetches and peers that read it */
    bool wanted;    /* this node is among an infd's cached-nodes */
};

/* budget 0: nine tenths of what the disk has left besides. */
int store_open(const char *models_dir, uint64_t budget_bytes, struct store **out,
               struct err *e) MUST_CHECK;
void store_close(struct store *s);

size_t store_count(const struct store *s);
struct store_entry *store_at(const struct store *s, size_t i);
struct store_entry *store_find(const struct store *s, const char *key);
/* A complete model with this digest, wherever it came from; NULL: none. */
struct store_entry *store_by_sha(const struct store *s, const char *sha256);

/* A new, incomplete entry with its folder (or the one that is there). */
int store_begin(struct store *s, const char *key, const char *source, const char *endpoint,
                const char *sha256, struct store_entry **out, struct err *e) MUST_CHECK;
/* Room for the entry to be `bytes` large; others may be dropped. -ENOSPC: "needs 4.1 GiB, …". */
int store_reserve(struct store *s, struct store_entry *m, uint64_t bytes, struct err *e) MUST_CHECK;
int store_complete(struct store *s, struct store_entry *m, const struct set *set,
                   struct err *e) MUST_CHECK;
void store_used(struct store *s, struct store_entry *m); /* just now */
void store_drop(struct store *s, struct store_entry *m); /* with its files */

bool store_changed(const struct store *s,
                   const struct store_entry *m); /* a file was written since the last check */
char *store_folder(const struct store *s, const struct store_entry *m);
/* What a worker loads, below models-dir ("fetched/<key>/model.gguf", or the folder of a set). */
char *store_relative(const struct store_entry *m);
uint64_t store_used_bytes(const struct store *s);
uint64_t store_budget_bytes(const struct store *s);
