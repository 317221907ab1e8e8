/* Matrix products: cuBLASLt by dlopen where the machine has it, else our own kernel. cuBLASLt is
 * asked for its best algorithm once a shape; answers are kept. BATON_CUBLASLT names another file;
 * 0: our own kernel, with which a row's result does not depend on how many rows there are. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/lt_abi.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SHAPES_MAX      256
#define WORKSPACE_BYTES (32u << 20)

struct shape {
    uint32_t m, n, k;
    lt_layout a, b, c;
    struct lt_algo algo;
};

struct library {
    void *so;
    lt_handle handle;
    lt_matmul_desc desc;
    gpu_ptr workspace;
    struct shape shapes[SHAPES_MAX];
    uint32_t n_shapes, oldest;
#define DECLARE(name, symbol, args) int(*name) args;
    LT_FUNCTIONS(DECLARE)
#undef DECLARE
};

/* What stands in g->gemm when the library was looked for and not found. */
static struct library missing;

static bool symbols(struct library *l)
{
    bool all = true;
#define LOAD(name, symbol, args)                                                                   \
    *(void **)(void *)&l->name = dlsym(l->so, #symbol);                                            \
    all = all && l->name;
    LT_FUNCTIONS(LOAD)
#undef LOAD
    return all;
}

static void shape_free(struct library *l, struct shape *s)
{
    lt_layout all[] = {s->a, s->b, s->c};
    for (int i = 0; i < 3; i++)
        if (all[i])
            (void)l->layout_destroy(all[i]);
}

static void library_free(struct gpu *g, struct library *l)
{
    for (uint32_t i = 0; i < l->n_shapes; i++)
        shape_free(l, &l->shapes[i]);
    if (l->desc)
        (void)l->desc_destroy(l->desc);
    if (l->handle)
        (void)l->destroy(l->handle);
    if (l->workspace)
        g->ops->release(g, l->workspace);
    if (l->so)
        dlclose(l->so);
    free(l);
}

static struct library *library_open(struct gpu *g)
{
    const char *names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    struct library *l = xcalloc(1, sizeof *l);
    const char *wanted = getenv("BATON_CUBLASLT");
    bool off = wanted && strcmp(wanted, "0") == 0;
    if (wanted && *wanted)
        names[0] = names[1] = wanted;
    int transposed = LT_OP_T;
    for (size_t i = 0; i < sizeof names / sizeof *names && !l->so && !off; i++)
        l->so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (l->so && symbols(l) && l->create(&l->handle) == 0 &&
        l->desc_create(&l->desc, LT_COMPUTE_32F, LT_R_32F) == 0 &&
        l->desc_set(l->desc, LT_DESC_TRANSA, &transposed, sizeof transposed) == 0 &&
        g->ops->alloc(g, WORKSPACE_BYTES, false, &l->workspace, NULL) == 0)
        return l;
    library_free(g, l);
    return &missing;
}

static struct library *library_of(struct gpu *g)
{
    if (!g->gemm)
        g->gemm = library_open(g);
    return g->gemm == &missing ? NULL : g->gemm;
}

bool gpu_gemm_is_library(const struct gpu *g)
{
    return g->gemm && g->gemm != &missing;
}

void gpu_gemm_fini(struct gpu *g)
{
    if (gpu_gemm_is_library(g))
        library_free(g, g->gemm);
    g->gemm = NULL;
}

/* In cuBLAS's column-major terms: c^T [n, m] = b^T-transposed [n, k] a^T [k, m]. */
static const struct shape *shape_of(struct library *l, uint32_t m, uint32_t n, uint32_t k)
{
    for (uint32_t i = 0; i < l->n_shapes; i++)
        if (l->shapes[i].m == m && l->shapes[i].n == n && l->shapes[i].k == k)
            return &l->shapes[i];
    struct shape s = {.m = m, .n = n, .k = k};
    struct lt_heuristic found;
    lt_preference pref = NULL;
    size_t workspace = WORKSPACE_BYTES;
    int got = 0;
    bool ok = l->layout_create(&s.b, LT_R_16BF, k, n, k) == 0 &&
              l->layout_create(&s.a, LT_R_16BF, k, m, k) == 0 &&
              l->layout_create(&s.c, LT_R_32F, n, m, n) == 0 && l->pref_create(&pref) == 0 &&
              l->pref_set(pref, LT_PREF_WORKSPACE, &workspace, sizeof workspace) == 0 &&
              l->heuristic(l->handle, l->desc, s.b, s.a, s.c, s.c, pref, 1, &found, &got) == 0 &&
              got == 1;
    if (pref)
        (void)l->pref_destroy(pref);
    if (!ok) {
        shape_free(l, &s);
        return NULL;
    }
    s.algo = found.algo;
    struct shape *to = &l->shapes[l->n_shapes];
    if (l->n_shapes < SHAPES_MAX) {
        l->n_shapes++;
    } else { /* prompts come in many lengths: the oldest goes */
        to = &l->shapes[l->oldest];
        l->oldest = (l->oldest + 1) % SHAPES_MAX;
        shape_free(l, to);
    }
    *to = s;
    return to;
}

int gpu_gemm(struct gpu *g, const struct gemm_args *a, struct err *e)
{
    struct library *l = library_of(g);
    if (a->k % 8 || !a->k)
        return err_set(e, EINVAL, "GPU operation: a product of %u columns", a->k);
    if (!a->m || !a->n)
        return 0;
    const struct shape *s = l ? shape_of(l, a->m, a->n, a->k) : NULL;
    if (s) {
        const float one = 1, none = 0;
        int r = l->matmul(l->handle, l->desc, &one, a->b, s->b, a->a, s->a, &none, a->c, s->c, a->c,
                          s->c, &s->algo, GPU_AS(void, l->workspace), WORKSPACE_BYTES,
                          g->ops->stream(g, GPU_COMPUTE));
        return r ? err_set(e, EIO, "GPU: cuBLASLt failed with status %d", r) : 0;
    }
    struct gpu_launch launch = {
        .kernel = "gemm_k",
        .grid = {(a->n + GEMM_TILE - 1) / GEMM_TILE, (a->m + GEMM_TILE - 1) / GEMM_TILE, 1},
        .block = {128, 1, 1},
        .shared_bytes = GEMM_SHARED,
        .args = a,
        .args_bytes = sizeof *a};
    return g->ops->launch(g, GPU_COMPUTE, &launch, e);
}
