/* set.h: the files of one model: a single file, or a repository folder (config.json,
 * tokenizer.json, *.safetensors, …), with their sizes and digests. A set is bounded: at most
 * SET_MAX_FILES files, names without folders. Parsers take text from outside. */
#pragma once
#include "lib/fetch/sha.h"
#include "lib/json/json.h"

#define SET_MAX_FILES      512
#define SET_MAX_FILE_BYTES (1ull << 42) /* 4 TiB */
#define SET_MAX_TEXT       (8u << 20)   /* of a manifest or a listing */

struct set_file {
    char name[256];
    uint64_t bytes;       /* UINT64_MAX: not known yet */
    char sha256[SHA_HEX]; /* "": not known yet */
};
struct set {
    struct set_file *files;
    size_t n;
};

void set_fini(struct set *s);
/* Refuses unsafe names, duplicates and too many files. sha256 NULL: unknown. */
int set_add(struct set *s, struct str name, uint64_t bytes, const char *sha256,
            struct err *e) MUST_CHECK;
void set_copy(struct set *to, const struct set *from); /* to is overwritten */
uint64_t set_bytes(const struct set *s);               /* of files whose size is known */
/* The digest that spec.model.sha256 pins: a single file's own; of several, that of the text which
 * `sha256sum` prints for them in order of name. Every file's digest must be known. */
void set_digest(const struct set *s, char hex[SHA_HEX]);

/* {"files":[{"name","bytes","sha256"}]}: what agents tell each other and keep on disk. New
 * reference. */
json_t *set_to_json(const struct set *s);
int set_from_json(const json_t *o, struct set *out, struct err *e) MUST_CHECK;

/* The Hub's answer to GET /api/models/<repo>/revision/<revision>?blobs=true: which of its files
 * make the model, and the commit that the revision means. where: for messages. */
int set_from_listing(struct str text, const char *where, struct set *out, char commit[129],
                     struct err *e) MUST_CHECK;
