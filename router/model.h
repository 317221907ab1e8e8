/* model.h: what the router needs of a model's files: tokenizer, chat template, context length and
 * shape. Loaded on a thread of libuv's pool (a vocabulary takes up to a second), then constant and
 * shared by reference count: requests that run keep theirs when the deployment changes. Counts are
 * touched on the loop's thread only. */
#pragma once
#include "lib/cost/predict.h"
#include "lib/llm/blocks.h"
#include "lib/llm/template.h"
#include "lib/llm/tokenizer.h"

#include <uv.h>

struct model {
    unsigned refs;
    struct tokenizer *tokenizer;
    struct chat_template *chat; /* NULL: the model has none; chat_error says why */
    char chat_error[256];
    uint32_t max_context; /* tokens */
    struct cost_shape shape;
    struct block_memo *named; /* NULL: no memory for it */
};

/* The folder that worker pods mount for local models; sources name files by that path. Where the
 * router itself finds it (another folder in process mode) is set once, at start. */
#define MODELS_MOUNT "/var/lib/baton/models"
void model_set_dir(const char *dir);

/* done() is called once on the loop's thread with a new reference, or NULL and the error. */
typedef void (*model_done_fn)(struct model *m, const struct err *e, void *ctx);
struct model_spec { /* copied */
    const char *source, *sha256, *endpoint;
    const char *const
        *workers; /* "host:port" of workers, for sources that are not seen from here */
    size_t n_workers;
    const char *secret; /* the peer secret; NULL: none yet */
};
int model_load(uv_loop_t *loop, const struct model_spec *spec, model_done_fn done,
               void *ctx) MUST_CHECK;
struct model *model_ref(struct model *m);
void model_unref(struct model *m); /* NULL is fine */
