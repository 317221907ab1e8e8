/* libFuzzer: a Hugging Face folder of arbitrary bytes: the first byte says where config.json ends
 * (in 64ths of the input), the rest is model.safetensors; and what is built on them (config, weight
 * image). A valid config.json is used when the input's own part is empty. */
#include "lib/llm/safetensors.h"
#include "worker/model/model.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char good[] =
    "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":16,\"intermediate_size\":16,"
    "\"num_attention_heads\":1,\"vocab_size\":4,\"rms_norm_eps\":1e-5}";

static const char *folder(void)
{
    static char dir[64];
    if (!*dir) {
        snprintf(dir, sizeof dir, "/dev/shm/baton-fuzz-%d", (int)getpid());
        if (mkdir(dir, 0700))
            abort();
    }
    return dir;
}

static void put(const char *name, const void *p, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder(), name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, p, n) != (ssize_t)n)
        abort();
    close(fd);
}

static void read_everything(const struct safetensors *s)
{
    uint8_t byte;
    for (size_t i = 0; i < safetensors_n_tensors(s); i++) {
        const struct safetensors_tensor *t = safetensors_at(s, i);
        ASSERT(t->offset + t->bytes <= safetensors_file_bytes(s));
        ASSERT(i == 0 || !str_eq(t->name, safetensors_at(s, i - 1)->name));
        if (t->bytes)
            ASSERT(safetensors_read(s, t, t->bytes - 1, &byte, 1, NULL) == 0);
    }
}

static void load(void)
{
    uint64_t bytes;
    struct err e;
    struct model *m;
    if (model_image_bytes(folder(), "scalar", &bytes, &e) < 0 || bytes >= 64u << 20)
        return;
    void *image = aligned_alloc(4096, bytes);
    if (image && model_image_fill(folder(), "scalar", image, bytes, &e) == 0) {
        ASSERT(model_attach(image, bytes, "scalar", &m, &e) == 0);
        model_free(m);
    }
    free(image);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct safetensors *s;
    struct err e;
    if (n < 1)
        return 0;
    size_t config = (n - 1) * (data[0] % 64u) / 64;
    if (config)
        put("config.json", data + 1, config);
    else
        put("config.json", good, sizeof good - 1);
    put("model.safetensors", data + 1 + config, n - 1 - config);
    if (safetensors_open(folder(), &s, &e) == 0) {
        read_everything(s);
        safetensors_free(s);
    }
    load();
    return 0;
}
