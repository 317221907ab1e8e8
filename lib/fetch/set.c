#include "lib/fetch/set.h"

#include "lib/fetch/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

void set_fini(struct set *s)
{
    free(s->files);
    *s = (struct set){0};
}

int set_add(struct set *s, struct str name, uint64_t bytes, const char *sha256, struct err *e)
{
    if (!source_name_safe(name) || memchr(name.p, '/', name.n))
        return err_set(e, EINVAL, "the file name %.*s can't be used",
                       (int)(name.n < 80 ? name.n : 80), name.p);
    if (bytes != UINT64_MAX && bytes > SET_MAX_FILE_BYTES)
        return err_set(e, EINVAL, "%.*s is larger than 4 TiB", STR_ARG(name));
    if (s->n == SET_MAX_FILES)
        return err_set(e, EINVAL, "the model has more than %d files", SET_MAX_FILES);
    for (size_t i = 0; i < s->n; i++)
        if (str_eq_c(name, s->files[i].name))
            return err_set(e, EINVAL, "the file %.*s is listed twice", STR_ARG(name));
    s->files = xrealloc(s->files, (s->n + 1) * sizeof *s->files);
    struct set_file *f = &s->files[s->n++];
    *f = (struct set_file){.bytes = bytes};
    memcpy(f->name, name.p, name.n);
    if (sha_is_hex(sha256))
        memcpy(f->sha256, sha256, SHA_HEX);
    return 0;
}

void set_copy(struct set *to, const struct set *from)
{
    *to = (struct set){.n = from->n};
    if (!from->n)
        return;
    to->files = xmalloc(from->n * sizeof *to->files);
    memcpy(to->files, from->files, from->n * sizeof *to->files);
}

uint64_t set_bytes(const struct set *s)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->files[i].bytes == UINT64_MAX ? 0 : s->files[i].bytes;
    return sum;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct set_file *)a)->name, ((const struct set_file *)b)->name);
}

void set_digest(const struct set *s, char hex[SHA_HEX])
{
    if (s->n == 1) {
        memcpy(hex, s->files[0].sha256, SHA_HEX);
        return;
    }
    struct set sorted;
    struct sha *h = sha_new();
    set_copy(&sorted, s);
    qsort(sorted.files, sorted.n, sizeof *sorted.files, by_name);
    for (size_t i = 0; i < sorted.n; i++) {
        sha_add(h, sorted.files[i].sha256, 64);
        sha_add(h, "  ", 2);
        sha_add(h, sorted.files[i].name, strlen(sorted.files[i].name));
        sha_add(h, "\n", 1);
    }
    sha_end(h, hex);
    set_fini(&sorted);
}

json_t *set_to_json(const struct set *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(list, json_pack("{s:s, s:I, s:s}", "name", s->files[i].name, "bytes",
                                              (json_int_t)s->files[i].bytes, "sha256",
                                              s->files[i].sha256));
    return json_pack("{s:o}", "files", list);
}

int set_from_json(const json_t *o, struct set *out, struct err *e)
{
    struct set s = {0};
    size_t i;
    json_t *f;
    int r = 0;
    json_array_foreach (json_object_get(o, "files"), i, f) {
        const char *name = json_str_at(f, "name", ""), *sha = json_str_at(f, "sha256", "");
        int64_t bytes = json_int_at(f, "bytes", -1);
        if (bytes < 0 || !sha_is_hex(sha))
            r = err_set(e, EINVAL, "a manifest's file has no size or no sha256");
        else
            r = set_add(&s, str_c(name), (uint64_t)bytes, sha, e);
        if (r)
            break;
    }
    if (!r && !s.n)
        r = err_set(e, EINVAL, "the manifest names no files");
    if (r)
        set_fini(&s);
    else
        *out = s;
    return r;
}

static bool is_weights(const char *name)
{
    return str_ends(str_c(name), STR(".safetensors"));
}

/* What a model needs beside its weights. */
static bool is_config(const char *name)
{
    static const char *const wanted[] = {"config.json",
                                         "generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "vocab.json",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "model.safetensors.index.json"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (strcmp(name, wanted[i]) == 0)
            return true;
    return false;
}

enum wanted { WANT_SAFETENSORS, WANT_GGUF };

static bool wanted_file(const char *name, enum wanted want, bool consolidated_too)
{
    if (strchr(name, '/'))
        return false;
    if (want == WANT_GGUF)
        return str_ends(str_c(name), STR(".gguf"));
    if (is_weights(name))
        return consolidated_too || !str_starts(str_c(name), STR("consolidated"));
    return is_config(name);
}

static int gather(const json_t *siblings, enum wanted want, bool consolidated_too, struct set *out,
                  struct err *e)
{
    size_t i;
    json_t *f;
    json_array_foreach (siblings, i, f) {
        const char *name = json_str_at(f, "rfilename", "");
        int64_t bytes = json_int_at(f, "lfs.size", json_int_at(f, "size", -1));
        if (!wanted_file(name, want, consolidated_too))
            continue;
        int r = set_add(out, str_c(name), bytes < 0 ? UINT64_MAX : (uint64_t)bytes,
                        json_str_at(f, "lfs.sha256", NULL), e);
        if (r)
            return r;
    }
    return 0;
}

static size_t count_weights(const struct set *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++)
        n += is_weights(s->files[i].name);
    return n;
}

static int one_gguf(const json_t *siblings, const char *where, struct set *out, struct err *e)
{
    int r = gather(siblings, WANT_GGUF, false, out, e);
    if (r)
        return r;
    if (out->n == 0)
        return err_set(e, ENOENT, "%s has neither safetensors with a config.json nor a GGUF file",
                       where);
    if (out->n > 1)
        return err_set(e, EINVAL, "%s has %zu GGUF files: name one, as in hf://org/repo/%s", where,
                       out->n, out->files[0].name);
    return 0;
}

static int choose(const json_t *siblings, const char *where, struct set *out, struct err *e)
{
    int r = gather(siblings, WANT_SAFETENSORS, false, out, e);
    if (!r && !count_weights(out)) { /* only consolidated ones, or none */
        set_fini(out);
        r = gather(siblings, WANT_SAFETENSORS, true, out, e);
    }
    if (r || count_weights(out))
        return r;
    set_fini(out);
    return one_gguf(siblings, where, out, e);
}

int set_from_listing(struct str text, const char *where, struct set *out, char commit[129],
                     struct err *e)
{
    CLEANUP(json_decrefp) json_t *o = json_parse(text, SET_MAX_TEXT, 0, e);
    struct set s = {0};
    if (!o)
        return err_wrap(e, "the list of files of %s", where);
    const char *sha = json_str_at(o, "sha", "");
    if (strlen(sha) > 128 || (*sha && !source_name_safe(str_c(sha))) || strchr(sha, '/'))
        return err_set(e, EINVAL, "%s: the commit in its list of files is not one", where);
    int r = choose(json_object_get(o, "siblings"), where, &s, e);
    if (r) {
        set_fini(&s);
        return r;
    }
    snprintf(commit, 129, "%s", sha);
    *out = s;
    return 0;
}
