/* Products by cuBLASLt, on a stand-in for it (libcublaslt.cc): layouts, algorithms kept by shape,
 * our own kernel where it has none. */
#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/emu_device.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct gpu *gpu;
static struct err err;
static int (*layouts)(void), (*heuristics)(void);

/* Small whole numbers: exact in bf16 and in every order of sums. */
static float small(uint32_t i)
{
    return (float)((int)(i * 2654435761u >> 28) - 8);
}

static uint16_t bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (uint16_t)(u >> 16);
}

static void *room(size_t bytes)
{
    gpu_ptr p;
    if (gpu->ops->alloc(gpu, bytes, false, &p, &err))
        fail_msg("%s", err.msg);
    return (void *)(uintptr_t)p;
}

static void product(uint32_t m, uint32_t n, uint32_t k)
{
    uint16_t *a = room((size_t)m * k * 2), *b = room((size_t)n * k * 2);
    float *c = room((size_t)m * n * 4);
    for (uint32_t i = 0; i < m * k; i++)
        a[i] = bf16(small(i));
    for (uint32_t i = 0; i < n * k; i++)
        b[i] = bf16(small(i + 77));
    struct gemm_args g = {.a = a, .b = b, .c = c, .m = m, .n = n, .k = k};
    if (gpu_gemm(gpu, &g, &err) || gpu->ops->sync(gpu, GPU_COMPUTE, &err))
        fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < m * n; i++) {
        float sum = 0;
        for (uint32_t j = 0; j < k; j++)
            sum += small(i / n * k + j) * small(i % n * k + j + 77);
        assert_true(c[i] == sum);
    }
    gpu->ops->release(gpu, (uintptr_t)a);
    gpu->ops->release(gpu, (uintptr_t)b);
    gpu->ops->release(gpu, (uintptr_t)c);
}

static void rows_and_columns_are_what_the_library_is_told(void **state)
{
    (void)state;
    product(3, 5, 16);
    assert_true(gpu_gemm_is_library(gpu));
    product(70, 9, 24);
    product(1, 40, 8); /* it has no algorithm for that: our own kernel */
}

static void a_shape_is_asked_for_once_and_the_oldest_goes(void **state)
{
    (void)state;
    int before = heuristics();
    product(4, 6, 8);
    product(4, 6, 8);
    assert_int_equal(heuristics(), before + 1);
    for (uint32_t m = 2; m < 300; m++)
        product(m, 2, 8);
    assert_true(layouts() <= 3 * 256);
    before = heuristics();
    product(299, 2, 8);
    assert_int_equal(heuristics(), before);
    product(4, 6, 8); /* long gone */
    assert_int_equal(heuristics(), before + 1);
    gpu_close(gpu);
    gpu = NULL;
    assert_int_equal(layouts(), 0);
}

int main(void)
{
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 64);
    if (n <= 0)
        return 99;
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/libcublasLt.so.13");
    void *so = dlopen(path, RTLD_NOW);
    if (!so)
        return 99;
    *(void **)(void *)&layouts = dlsym(so, "emu_lt_layouts");
    *(void **)(void *)&heuristics = dlsym(so, "emu_lt_heuristics");
    gpu = emu_device_new(2);
    setenv("BATON_CUBLASLT", path, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_columns_are_what_the_library_is_told),
        cmocka_unit_test(a_shape_is_asked_for_once_and_the_oldest_goes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
