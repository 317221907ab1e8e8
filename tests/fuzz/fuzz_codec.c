/* libFuzzer: the codec on arbitrary bytes, cut at arbitrary places (the first byte is the step). */
#include "lib/io/codec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    size_t step = (size_t)data[0] + 1, body = 0;
    struct codec c;
    codec_init(&c);
    for (size_t at = 1; at < n; at += step) {
        struct str in = {(const char *)data + at, n - at < step ? n - at : step}, piece = {0};
        int ev;
        while ((ev = codec_feed(&c, &in, &piece, NULL)) > CODEC_MORE) {
            body += ev == CODEC_DATA ? piece.n : 0;
            if (ev == CODEC_HEADERS)
                (void)codec_header(&c, "content-type").n;
            if (ev == CODEC_DONE)
                codec_reset(&c);
        }
        if (ev < 0)
            break;
    }
    ASSERT(body <= n);
    if (codec_eof(&c) < 0)
        ASSERT(c.state != CODEC_FINISHED);
    codec_fini(&c);
    return 0;
}
