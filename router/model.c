#include "router/model.h"
#include "router/head.h"

#include "lib/fetch/source.h"
#include "lib/json/json.h"
#include "lib/llm/gguf.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MAX_CONFIG_BYTES (4u << 20)
#define REMEMBERED_BYTES (16u << 20) /* texts of conversations that go on, with their tokens */
#define WORKERS_MAX      4           /* that are asked for a model's head */

struct load {
    uv_work_t work;
    char *source, *sha256, *endpoint, *secret;
    char *workers[WORKERS_MAX];
    size_t n_workers;
    struct model *model;
    struct err err;
    model_done_fn done;
    void *ctx;
};

static uint32_t key_u32(const struct gguf *g, struct str arch, const char *suffix, uint32_t dflt)
{
    char key[128];
    uint64_t v;
    snprintf(key, sizeof key, STR_FMT ".%s", STR_ARG(arch), suffix);
    return gguf_u64(g, key, &v) || v > UINT32_MAX ? dflt : (uint32_t)v;
}

static int shape_of_gguf(const char *path, struct model *m, struct err *e)
{
    struct gguf *g;
    struct str arch;
    int rc = gguf_open(path, &g, e);
    if (rc)
        return rc;
    if (gguf_str(g, "general.architecture", &arch)) {
        gguf_free(g);
        return err_set(e, EINVAL, "%s: general.architecture is missing", path);
    }
    struct cost_shape *s = &m->shape;
    m->max_context = key_u32(g, arch, "context_length", 0);
    s->layers = key_u32(g, arch, "block_count", 0);
    s->heads = key_u32(g, arch, "attention.head_count", 1);
    s->kv_heads = key_u32(g, arch, "attention.head_count_kv", s->heads);
    uint32_t width = key_u32(g, arch, "embedding_length", 0);
    s->head_dim = key_u32(g, arch, "attention.key_length", s->heads ? width / s->heads : 0);
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        s->weight_bytes += (double)t->bytes;
        s->params += (double)t->ne[0] * (double)t->ne[1] * (double)t->ne[2] * (double)t->ne[3];
    }
    gguf_free(g);
    return 0;
}

/* Weights of the feed-forward parts that one token passes, and of all: dense, or experts. */
static void ffn_params(const json_t *o, double width, double layers, double *active, double *all)
{
    double dense = json_num_at(o, "intermediate_size", 4 * width);
    double experts =
        json_num_at(o, "num_local_experts",
                    json_num_at(o, "num_experts", json_num_at(o, "n_routed_experts", 0)));
    double each = json_num_at(o, "moe_intermediate_size", dense),
           used = json_num_at(o, "num_experts_per_tok", 2),
           shared = json_num_at(o, "n_shared_experts", 0);
    double plain = experts > 0 ? json_num_at(o, "first_k_dense_replace", 0) : layers;
    *active = 3 * width * (plain * dense + (layers - plain) * each * (used + shared));
    *all = 3 * width * (plain * dense + (layers - plain) * each * (experts + shared));
}

static int shape_of_config(const char *path, struct model *m, struct err *e)
{
    CLEANUP(json_decrefp) json_t *whole = json_parse_file(path, MAX_CONFIG_BYTES, e);
    if (!whole)
        return -e->code;
    const json_t *text = json_object_get(whole, "text_config"), *o = text ? text : whole;
    struct cost_shape *s = &m->shape;
    m->max_context = (uint32_t)json_int_at(o, "max_position_embeddings", 0);
    s->layers = (uint32_t)json_int_at(o, "num_hidden_layers", 0);
    s->heads = (uint32_t)json_int_at(o, "num_attention_heads", 1);
    s->kv_heads = (uint32_t)json_int_at(o, "num_key_value_heads", s->heads);
    int64_t width = json_int_at(o, "hidden_size", 0), latent = json_int_at(o, "kv_lora_rank", 0);
    s->head_dim = (uint32_t)json_int_at(o, "head_dim", s->heads ? width / s->heads : 0);
    if (latent > 0 && latent < 1 << 20) { /* one latent a token in place of K and V */
        s->kv_heads = 1;
        s->head_dim = (uint32_t)(latent + json_int_at(o, "qk_rope_head_dim", 0)) / 2;
    }
    double active, all, w = (double)width;
    double rest = s->layers * 4.0 * w * w + 2 * w * json_num_at(o, "vocab_size", 0);
    ffn_params(o, w, s->layers, &active, &all);
    s->params = rest + active;
    s->weight_bytes = 2 * (rest + all);
    return 0;
}

/* The only *.gguf of a folder on the heap, or NULL. */
static char *gguf_in(const char *dir)
{
    DIR *d = opendir(dir);
    char *found = NULL;
    for (struct dirent *x; d && (x = readdir(d));) {
        if (!str_ends(str_c(x->d_name), STR(".gguf")))
            continue;
        free(found);
        found = xasprintf("%s/%s", dir, x->d_name);
    }
    if (d)
        closedir(d);
    return found;
}

static int read_shape(const char *path, struct model *m, struct err *e)
{
    struct stat st;
    if (stat(path, &st))
        return err_set(e, errno, "%s: %s", path, strerror(errno));
    struct str name = str_c(path);
    if (str_ends(name, STR(".safetensors")) || str_ends(name, STR(".safetensors.index.json"))) {
        const char *slash = strrchr(path, '/');
        CLEANUP(free_charp)
        char *beside = slash ? xasprintf("%.*s/config.json", (int)(slash - path), path)
                             : xstrdup("config.json");
        return shape_of_config(beside, m, e);
    }
    if (!S_ISDIR(st.st_mode))
        return str_ends(name, STR(".json")) ? 0 : shape_of_gguf(path, m, e);
    CLEANUP(free_charp) char *gguf = gguf_in(path);
    if (gguf)
        return shape_of_gguf(gguf, m, e);
    CLEANUP(free_charp) char *config = xasprintf("%s/config.json", path);
    return shape_of_config(config, m, e);
}

static void compile_chat(struct model *m)
{
    struct str source = tokenizer_chat_template(m->tokenizer);
    struct err e = {0};
    if (!source.n)
        snprintf(m->chat_error, sizeof m->chat_error, "%s", chat_template_missing);
    else if (chat_template_new(source, &m->chat, &e))
        snprintf(m->chat_error, sizeof m->chat_error, "the model's chat template: %.200s", e.msg);
}

static const char *models_dir = MODELS_MOUNT;

void model_set_dir(const char *dir)
{
    models_dir = dir;
}

/* The local path of a source, on the heap. */
static char *local_path(struct str path)
{
    struct str mount = STR(MODELS_MOUNT "/");
    if (!str_starts(path, mount))
        return str_dup(path);
    return xasprintf("%s/" STR_FMT, models_dir, (int)(path.n - mount.n), path.p + mount.n);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* What the node's agent has fetched: the file, or the folder of a repository; NULL: not here. Only
 * complete models have a manifest. */
static char *fetched_path(const struct load *l, const char *source)
{
    char key[SOURCE_KEY_MAX];
    source_key(source, l->endpoint, l->sha256, key);
    CLEANUP(free_charp) char *manifest = xasprintf("%s/fetched/%s/.baton.json", models_dir, key);
    if (!exists(manifest))
        return NULL;
    char *dir = xasprintf("%s/fetched/%s", models_dir, key);
    char *gguf = gguf_in(dir);
    if (!gguf)
        return dir;
    free(dir);
    return gguf;
}

/* Where this process sees the source's files, on the heap; NULL: nowhere. */
static char *seen_path(const struct load *l, const char *source)
{
    struct source s;
    if (!strstr(source, "://"))
        return local_path(str_c(source));
    if (source_parse(source, &s, NULL))
        return NULL;
    char *path = s.kind == SOURCE_FILE  ? local_path(str_c(s.path))
                 : s.kind == SOURCE_PVC ? xasprintf("%s/%s", models_dir, s.path)
                 : source_fetched(&s)   ? fetched_path(l, source)
                                        : NULL;
    if (path && exists(path))
        return path;
    free(path);
    return NULL;
}

static int read_path(const char *path, struct model *m, struct err *e)
{
    int rc = tokenizer_open(path, &m->tokenizer, e);
    rc = rc ? rc : read_shape(path, m, e);
    if (rc)
        return rc;
    if (!m->max_context || m->max_context > 1u << 20)
        m->max_context = 1u << 20;
    m->shape.kv_element_bytes = 2;
    tokenizer_remember(m->tokenizer, REMEMBERED_BYTES);
    m->named = block_memo_new();
    compile_chat(m);
    return 0;
}

/* Here, else from a worker that has it. */
static int read_model(const struct load *l, struct model *m, struct err *e)
{
    struct str first;
    str_cut(str_c(l->source), ',',
            &first); /* sources in order of preference; a worker takes the first too */
    CLEANUP(free_charp) char *source = str_dup(str_trim(first));
    CLEANUP(free_charp) char *path = seen_path(l, source);
    if (path)
        return read_path(path, m, e);
    char *dir = NULL;
    struct head_from from = {(const char *const *)l->workers, l->n_workers, l->secret};
    int rc = head_fetch(&from, &dir, &path, e);
    rc = rc ? err_wrap(e, "%.200s", source) : read_path(path, m, e);
    head_remove(dir);
    return rc;
}

static void on_work(uv_work_t *w)
{
    struct load *l = w->data;
    struct model *m = xcalloc(1, sizeof *m);
    m->refs = 1;
    if (read_model(l, m, &l->err))
        model_unref(m);
    else
        l->model = m;
}

static void load_free(struct load *l)
{
    for (size_t i = 0; i < l->n_workers; i++)
        free(l->workers[i]);
    free(l->source);
    free(l->sha256);
    free(l->endpoint);
    free(l->secret);
    free(l);
}

static void on_after(uv_work_t *w, int status)
{
    struct load *l = w->data;
    if (status)
        err_set(&l->err, ECANCELED, "loading was cancelled");
    l->done(l->model, &l->err, l->ctx);
    load_free(l);
}

int model_load(uv_loop_t *loop, const struct model_spec *spec, model_done_fn done, void *ctx)
{
    struct load *l = xcalloc(1, sizeof *l);
    l->work.data = l;
    l->source = xstrdup(spec->source);
    l->sha256 = xstrdup(spec->sha256 ? spec->sha256 : "");
    l->endpoint = xstrdup(spec->endpoint ? spec->endpoint : "");
    l->secret = spec->secret ? xstrdup(spec->secret) : NULL;
    for (size_t i = 0; i < spec->n_workers && i < WORKERS_MAX; i++)
        l->workers[l->n_workers++] = xstrdup(spec->workers[i]);
    l->done = done;
    l->ctx = ctx;
    int rc = uv_queue_work(loop, &l->work, on_work, on_after);
    if (rc)
        load_free(l);
    return rc;
}

struct model *model_ref(struct model *m)
{
    m->refs++;
    return m;
}

void model_unref(struct model *m)
{
    if (!m || --m->refs)
        return;
    tokenizer_free(m->tokenizer);
    chat_template_free(m->chat);
    block_memo_free(m->named);
    free(m);
}
