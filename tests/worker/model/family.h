/* family.h: small random-weight models of every family as folders of Hugging Face files. A golden
 * (tests/golden/families, by tools/goldens-families.py) holds config, list of tensors, token ids
 * and transformers' logits; the weights are drawn here by the generator that the script describes.
 */
#pragma once
#include "kernels/ops.h"
#include "lib/base/buf.h"
#include "lib/base/rng.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct family {
    json_t *golden;
    char *dir; /* of its files */
    uint32_t n_ids, vocab;
    uint32_t *ids;
    double *logits; /* [n_ids, vocab] */
};

static const char *const family_names[] = {
    "llama3",      "qwen2",           "qwen3",       "gemma3",
    "mixtral",     "qwen3-moe",       "deepseek-v2", "deepseek-v2-lite",
    "deepseek-v3", "deepseek-v3-fp8",
};
#define N_FAMILIES (sizeof family_names / sizeof *family_names)

static inline struct rng family_rng(const char *name)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (const char *p = name; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001b3ull;
    return (struct rng){h};
}

static inline uint16_t family_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* One value of a tensor as its bytes; returns how many. */
static inline size_t family_value(const char *type, uint64_t draw, float scale, float offset,
                                  uint8_t out[4])
{
    if (strcmp(type, "F8_E4M3") == 0) {
        out[0] = (uint8_t)((draw & 1) << 7 | ((draw >> 1) % 6 + 4) << 3 | (draw >> 8 & 7));
        return 1;
    }
    float f = ((float)(draw >> 40) * 0x1p-24f - 0.5f) * scale;
    f += offset;
    uint16_t h = strcmp(type, "F16") == 0 ? f32_to_f16(f) : family_bf16(f);
    if (strcmp(type, "F32") == 0) {
        memcpy(out, &f, 4);
        return 4;
    }
    memcpy(out, &h, 2);
    return 2;
}

static inline void family_put(struct buf *b, const void *p, size_t n)
{
    if (buf_append(b, p, n) < 0)
        abort();
}

static inline void family_tensor(const json_t *entry, struct buf *header, struct buf *data)
{
    const char *name = json_string_value(json_array_get(entry, 0)),
               *type = json_string_value(json_array_get(entry, 1));
    const json_t *shape = json_array_get(entry, 2);
    float scale = (float)json_number_value(json_array_get(entry, 3)),
          offset = (float)json_number_value(json_array_get(entry, 4));
    struct rng rng = family_rng(name);
    size_t n = 1, from = data->n;
    char *dims = json_dumps(shape, JSON_COMPACT);
    for (size_t i = 0; i < json_array_size(shape); i++)
        n *= (size_t)json_integer_value(json_array_get(shape, i));
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[4];
        family_put(data, bytes, family_value(type, rng_next(&rng), scale, offset, bytes));
    }
    if (buf_printf(header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}",
                   header->n > 1 ? "," : "", name, type, dims, from, data->n) < 0)
        abort();
    free(dims);
}

static inline void family_file(const char *dir, const char *name, struct str text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    if (!f || fwrite(text.p, 1, text.n, f) != text.n || fclose(f))
        abort();
}

/* Tensors [from, to) of the list as one file. */
static inline void family_shard(const struct family *f, const char *name, size_t from, size_t to)
{
    struct buf header, data, all;
    buf_init(&header, 1u << 20);
    buf_init(&data, 64u << 20);
    buf_init(&all, 64u << 20);
    family_put(&header, "{", 1);
    for (size_t i = from; i < to; i++)
        family_tensor(json_array_get(json_object_get(f->golden, "tensors"), i), &header, &data);
    family_put(&header, "}", 1);
    uint64_t n = header.n;
    family_put(&all, &n, 8);
    family_put(&all, header.data, header.n);
    family_put(&all, data.data, data.n);
    family_file(f->dir, name, buf_view(&all));
    buf_fini(&header);
    buf_fini(&data);
    buf_fini(&all);
}

/* Two shards and their index. */
static inline void family_shards(const struct family *f)
{
    const json_t *list = json_object_get(f->golden, "tensors");
    size_t n = json_array_size(list);
    struct buf b;
    buf_init(&b, 1u << 20);
    family_shard(f, "model-00001-of-00002.safetensors", 0, n / 2);
    family_shard(f, "model-00002-of-00002.safetensors", n / 2, n);
    int rc = buf_cstr(&b, "{\"metadata\":{},\"weight_map\":{");
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = buf_printf(&b, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "",
                        json_string_value(json_array_get(json_array_get(list, i), 0)),
                        i < n / 2 ? 1 : 2);
    if (rc < 0 || buf_cstr(&b, "}}") < 0)
        abort();
    family_file(f->dir, "model.safetensors.index.json", buf_view(&b));
    buf_fini(&b);
}

static inline void family_numbers(struct family *f)
{
    const json_t *ids = json_object_get(f->golden, "ids"),
                 *rows = json_object_get(f->golden, "logits");
    f->n_ids = (uint32_t)json_array_size(ids);
    f->vocab = (uint32_t)json_array_size(json_array_get(rows, 0));
    f->ids = calloc(f->n_ids, sizeof *f->ids);
    f->logits = calloc((size_t)f->n_ids * f->vocab, sizeof *f->logits);
    for (uint32_t i = 0; i < f->n_ids; i++) {
        f->ids[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
        for (uint32_t k = 0; k < f->vocab; k++)
            f->logits[(size_t)i * f->vocab + k] =
                json_number_value(json_array_get(json_array_get(rows, i), k));
    }
}

/* Tests run from the root of the repository. */
static inline void family_open(struct family *f, const char *name)
{
    char path[256];
    json_error_t je;
    snprintf(path, sizeof path, "tests/golden/families/%s.json", name);
    *f = (struct family){.golden = json_load_file(path, 0, &je),
                         .dir = xstrdup("/tmp/baton-XXXXXX")};
    if (!f->golden || !mkdtemp(f->dir))
        abort();
    family_numbers(f);
    char *config = json_dumps(json_object_get(f->golden, "config"), JSON_COMPACT);
    family_file(f->dir, "config.json", str_c(config));
    free(config);
    if (strlen(name) % 2) /* some of each */
        family_shards(f);
    else
        family_shard(f, "model.safetensors", 0,
                     json_array_size(json_object_get(f->golden, "tensors")));
}

static inline void family_close(struct family *f)
{
    static const char *const files[] = {
        "config.json", "model.safetensors", "model.safetensors.index.json",
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
    char path[512];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", f->dir, files[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f->dir);
    free(f->ids);
    free(f->logits);
    json_decref(f->golden);
}
