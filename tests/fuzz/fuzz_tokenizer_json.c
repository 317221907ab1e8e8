/* libFuzzer: a tokenizer.json of arbitrary bytes; one that opens must encode and decode. */
#include "lib/llm/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void use(const struct tokenizer *t)
{
    static const char text[] = "The  capital\n of <s>Fr\xc3\xa9nce</s> is 12345 \xff \xe4\xbd\xa0";
    struct ids ids;
    struct buf out;
    ids_init(&ids, 1000);
    buf_init(&out, 1 << 20);
    if (tokenizer_encode(t, STR(text), TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, &ids, NULL) ==
        0) {
        for (size_t i = 0; i < ids.n; i++)
            ASSERT(ids.id[i] < tokenizer_vocab(t));
        (void)!tokenizer_decode(t, ids.id, ids.n, false, &out, NULL);
    }
    ids_fini(&ids);
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    struct tokenizer *t = NULL;
    struct err e = {0};
    int fd = memfd_create("tokenizer.json", MFD_CLOEXEC);
    ASSERT(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tokenizer_open(path, &t, &e) == 0)
        use(t);
    else
        ASSERT(e.msg[0] && !t);
    tokenizer_free(t);
    close(fd);
    return 0;
}
