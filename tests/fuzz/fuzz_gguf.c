/* libFuzzer: the GGUF reader and what is built on it (config, weight image) on arbitrary bytes,
 * through a memory file. */
#include "lib/llm/gguf.h"
#include "worker/model/model.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_everything(struct gguf *g)
{
    const struct str *strs;
    const int64_t *ints;
    const float *floats;
    size_t count = 0;
    uint8_t byte;
    if (gguf_strs(g, "tokenizer.ggml.tokens", &strs, &count) == 0 && count > 0)
        ASSERT(strs[count - 1].n == 0 || strs[count - 1].p != NULL);
    if (gguf_i64s(g, "tokenizer.ggml.token_type", &ints, &count) == 0 && count > 0)
        ASSERT(ints[count - 1] >= INT32_MIN || ints[count - 1] < 0);
    if (gguf_f32s(g, "tokenizer.ggml.scores", &floats, &count) < 0)
        count = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        ASSERT(t->offset + t->bytes <= gguf_file_bytes(g));
        if (t->bytes)
            ASSERT(gguf_read(g, t, t->bytes - 1, &byte, 1, NULL) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    struct gguf *g;
    struct err e;
    uint64_t bytes;
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gguf_open(path, &g, &e) == 0) {
        read_everything(g);
        gguf_free(g);
    }
    if (model_image_bytes(path, "scalar", &bytes, &e) == 0 && bytes < (64u << 20)) {
        void *image = aligned_alloc(4096, bytes);
        struct model *m;
        if (image && model_image_fill(path, "scalar", image, bytes, &e) == 0) {
            ASSERT(model_attach(image, bytes, "scalar", &m, &e) == 0);
            model_free(m);
        }
        free(image);
    }
    close(fd);
    return 0;
}
