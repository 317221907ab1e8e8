#include "worker/model/source.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define NAME_BYTES 256u

struct source {
    struct gguf *gguf;
    struct safetensors *st;
    struct model_config config;
    const char *prefix; /* in place of "model." */
};

static const struct {
    enum safetensors_type from;
    uint32_t to;
} types[] = {{ST_F32, GGUF_F32}, {ST_F16, GGUF_F16}, {ST_BF16, GGUF_BF16}, {ST_F8_E4M3, SOURCE_F8}};

/* The folder of an HF model, on the heap; NULL when the path is a file that isn't an index. */
static char *folder_of(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return xstrdup(path);
    if (!str_ends(str_c(path), STR(".json")) && !str_ends(str_c(path), STR(".safetensors")))
        return NULL;
    const char *slash = strrchr(path, '/');
    return slash ? str_dup((struct str){path, slash == path ? 1 : (size_t)(slash - path)})
                 : xstrdup(".");
}

static void find_prefix(struct source *s)
{
    static const char *const all[] = {"model.", "language_model.model.", "model.language_model."};
    char name[NAME_BYTES];
    s->prefix = all[0];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(name, sizeof name, "%sembed_tokens.weight", all[i]);
        if (safetensors_find(s->st, name)) {
            s->prefix = all[i];
            return;
        }
    }
}

static int open_hf(struct source *s, const char *path, const char *folder, struct err *e)
{
    struct stat st;
    bool dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    bool config = str_ends(str_c(path), STR("/config.json"));
    int rc = safetensors_open(dir || config ? folder : path, &s->st, e);
    if (rc < 0)
        return rc;
    find_prefix(s);
    return config_from_hf(folder, s->st, &s->config, e);
}

static int open_gguf(struct source *s, const char *path, struct err *e)
{
    int rc = gguf_open(path, &s->gguf, e);
    return rc < 0 ? rc : config_from_gguf(s->gguf, &s->config, e);
}

int source_open(const char *path, struct source **out, struct err *e)
{
    CLEANUP(free_charp) char *folder = folder_of(path);
    struct source *s = xcalloc(1, sizeof *s);
    int rc = folder ? open_hf(s, path, folder, e) : open_gguf(s, path, e);
    if (rc < 0) {
        source_free(s);
        return e ? err_wrap(e, "%s", path) : rc;
    }
    *out = s;
    return 0;
}

void source_free(struct source *s)
{
    if (!s)
        return;
    gguf_free(s->gguf);
    safetensors_free(s->st);
    free(s);
}

const struct model_config *source_config(const struct source *s)
{
    return &s->config;
}

bool source_is_hf(const struct source *s)
{
    return s->st != NULL;
}

static bool find_gguf(const struct source *s, const char *name, struct source_tensor *out)
{
    const struct gguf_tensor *g = gguf_tensor(s->gguf, name);
    if (!g)
        return false;
    uint64_t rows = g->ne[1] * g->ne[2] * g->ne[3];
    *out = (struct source_tensor){.type = g->type,
                                  .rows = rows,
                                  .cols = g->ne[0],
                                  .row_bytes = rows ? g->bytes / rows : 0,
                                  .g = g};
    return true;
}

/* The tensor of `name` with the model's own prefix. */
static const struct safetensors_tensor *lookup(const struct source *s, const char *name,
                                               const char *suffix)
{
    char full[NAME_BYTES];
    const char *prefix = "";
    if (strncmp(name, "model.", 6) == 0) {
        prefix = s->prefix;
        name += 6;
    } else if (strncmp(s->prefix, "language_model.", 15) == 0) {
        prefix = "language_model.";
    }
    snprintf(full, sizeof full, "%s%s%s", prefix, name, suffix);
    return safetensors_find(s->st, full);
}

static bool find_hf(const struct source *s, const char *name, struct source_tensor *out)
{
    const struct safetensors_tensor *t = lookup(s, name, "");
    if (!t)
        return false;
    struct source_tensor o = {.type = UINT32_MAX, .s = t, .rows = 1, .cols = 1};
    if (t->n_dims)
        o.cols = t->shape[t->n_dims - 1];
    for (uint32_t i = 0; i + 1 < t->n_dims; i++)
        o.rows *= t->shape[i];
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].from == t->type)
            o.type = types[i].to;
    o.row_bytes = o.rows ? t->bytes / o.rows : 0;
    if (o.type == SOURCE_F8) {
        const struct safetensors_tensor *sc = lookup(s, name, "_scale_inv");
        uint64_t r = (o.rows + SOURCE_F8_BLOCK - 1) / SOURCE_F8_BLOCK,
                 c = (o.cols + SOURCE_F8_BLOCK - 1) / SOURCE_F8_BLOCK;
        bool fits =
            sc && sc->type == ST_F32 && sc->n_dims == 2 && sc->shape[0] == r && sc->shape[1] == c;
        o.scales = fits ? sc : NULL;
        if (!fits)
            o.type = UINT32_MAX; /* without its scales it is no type that we know */
    }
    *out = o;
    return true;
}

bool source_find(const struct source *s, const char *name, struct source_tensor *out)
{
    return s->st ? find_hf(s, name, out) : find_gguf(s, name, out);
}

const char *source_type_name(const struct source_tensor *t)
{
    if (t->g)
        return gguf_type_name(t->type);
    if (t->s->type == ST_F8_E4M3 && !t->scales)
        return "F8_E4M3 without scales of 128 x 128";
    return safetensors_type_name(t->s->type);
}

int source_rows(const struct source *s, const struct source_tensor *t, uint64_t row, uint64_t n,
                void *out, struct err *e)
{
    ASSERT(row <= t->rows && n <= t->rows - row);
    uint64_t from = row * t->row_bytes;
    size_t bytes = (size_t)(n * t->row_bytes);
    return t->g ? gguf_read(s->gguf, t->g, from, out, bytes, e)
                : safetensors_read(s->st, t->s, from, out, bytes, e);
}

int source_scales(const struct source *s, const struct source_tensor *t, uint64_t row, float *out,
                  struct err *e)
{
    uint64_t n = t->scales->shape[1];
    return safetensors_read(s->st, t->scales, row / SOURCE_F8_BLOCK * n * sizeof(float), out,
                            (size_t)n * sizeof(float), e);
}
