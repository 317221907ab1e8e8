/* What the router's benchmark needs besides routers; bench/router.py drives it.
 *
 *   router sink PORT            answers at once, without a model: as a Baton worker (events,
 * generate) and as an OpenAI-compatible server, so that every router has the same backend. An
 * answer has 16 tokens. router load PORT BODY CONNECTIONS SECONDS [PATH] posts the file BODY over
 * so many connections; prints JSON: requests, errors, microseconds. A mark @@@@@@@@ in
 * it is a number that no other request has. router tokenize MODEL TEXT
 * microseconds of tokenising the file TEXT, and of naming its blocks */
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/io/conn.h"
#include "lib/io/httpd.h"
#include "lib/llm/blocks.h"
#include "lib/llm/tokenizer.h"
#include "lib/wire/heartbeat.h"
#include "lib/wire/record.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TOKENS      16
#define MAX_SAMPLES 1000000

static uv_loop_t loop;

/* ---- sink ---- */

struct stream {
    struct httpd_req *req;
    struct stream *prev, *next;
    bool wire;
    int left; /* tokens */
    uint64_t seq;
};
static struct stream *streams, *event_streams;
static uv_idle_t spin; /* while streams run the loop does not sleep */

static void on_spin(uv_idle_t *h)
{
    if (!streams)
        uv_idle_stop(h);
}

static void unlink_stream(struct stream **list, struct stream *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        *list = s->next;
    if (s->next)
        s->next->prev = s->prev;
}

static struct stream *new_stream(struct stream **list, struct httpd_req *req)
{
    struct stream *s = xcalloc(1, sizeof *s);
    s->req = req;
    s->next = *list;
    if (*list)
        (*list)->prev = s;
    *list = s;
    return s;
}

static void on_close(struct httpd_req *req, bool gone, void *ctx)
{
    (void)req;
    (void)gone;
    struct stream *s = ctx;
    unlink_stream(s->left == -1 ? &event_streams : &streams, s);
    free(s);
}

static void write_to(struct stream *s, const struct buf *b)
{
    if (httpd_stream_write(s->req, buf_view(b)))
        httpd_abort(s->req);
}

static void put_record(struct buf *b, uint32_t id, uint8_t kind, uint8_t finish, const char *extra)
{
    struct wire_record r = {.id = id,
                            .kind = kind,
                            .finish = finish,
                            .logprob = NAN,
                            .extra = extra,
                            .extra_bytes = (uint16_t)strlen(extra)};
    ASSERT(!wire_record_encode(&r, b));
}

static void put_token(struct stream *s, struct buf *b)
{
    static const char usage[] = "{\"prompt_tokens\":1,\"cached_tokens\":0,\"kv_bytes\":0}";
    s->left--;
    if (s->wire) {
        put_record(b, 1000 + (uint32_t)s->left, WIRE_TOKEN, s->left ? 0 : WIRE_FINISH_LENGTH,
                   s->left == TOKENS - 1 ? usage : "");
        if (!s->left)
            put_record(b, 0, WIRE_END, 0, usage);
        return;
    }
    ASSERT(!buf_printf(
        b,
        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,"
        "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"word \"},"
        "\"finish_reason\":%s}]}\n\n%s",
        s->left ? "null" : "\"length\"", s->left ? "" : "data: [DONE]\n\n"));
}

/* One token of every stream each turn of the loop, so that tokens travel one by one as they do from
 * a model. */
static void on_turn(uv_check_t *c)
{
    (void)c;
    struct buf b;
    buf_init(&b, 65536);
    for (struct stream *s = streams, *next; s; s = next) {
        next = s->next;
        if (s->left <= 0 || httpd_stream_queued(s->req))
            continue;
        buf_reset(&b);
        put_token(s, &b);
        write_to(s, &b);
        if (!s->left)
            httpd_stream_end(s->req);
    }
    buf_fini(&b);
}

static void put_heartbeat(struct stream *s, uint32_t flags)
{
    struct buf b;
    struct wire_heartbeat h = {.incarnation = 1,
                               .seq = s->seq++,
                               .flags = WIRE_HB_READY | flags,
                               .role = WIRE_ROLE_UNIFIED,
                               .xfer_port = 9,
                               .load = {.kv_blocks = 1000000, .block_tokens = 32}};
    buf_init(&b, 4096);
    ASSERT(!wire_heartbeat_encode(&h, &b));
    write_to(s, &b);
    buf_fini(&b);
}

static void on_beat(uv_timer_t *t)
{
    (void)t;
    for (struct stream *s = event_streams; s; s = s->next)
        put_heartbeat(s, 0);
}

static void start_stream(struct httpd_req *req, bool wire)
{
    struct stream *s = new_stream(&streams, req);
    s->wire = wire;
    s->left = TOKENS;
    uv_idle_start(&spin, on_spin);
    httpd_on_close(req, on_close, s);
    httpd_stream_start(req, 200, wire ? "application/octet-stream" : "text/event-stream", 1 << 20);
}

static void whole_wire(struct httpd_req *req)
{
    struct buf b;
    struct stream s = {.wire = true, .left = TOKENS};
    buf_init(&b, 65536);
    while (s.left)
        put_token(&s, &b);
    httpd_reply(req, 200, "application/octet-stream", buf_view(&b));
    buf_fini(&b);
}

static void sink(struct httpd_req *req, void *ctx)
{
    (void)ctx;
    static const char whole[] = "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"created\":"
                                "1,\"model\":\"m\",\"choices\":[{\"index\":0,"
                                "\"message\":{\"role\":\"assistant\",\"content\":\"word word word "
                                "word word word word word word word word word "
                                "word word word "
                                "word\"},\"finish_reason\":\"length\"}],\"usage\":{\"prompt_"
                                "tokens\":1,\"completion_tokens\":16,"
                                "\"total_tokens\":17}}";
    struct str path = httpd_path(req), body = httpd_body(req);
    if (str_eq_c(path, "/v1/internal/events")) {
        struct stream *s = new_stream(&event_streams, req);
        s->left = -1;
        s->seq = 1;
        httpd_on_close(req, on_close, s);
        httpd_stream_start(req, 200, "application/octet-stream", 1 << 20);
        put_heartbeat(s, WIRE_HB_RESET | WIRE_HB_COMPLETE);
    } else if (str_eq_c(path, "/v1/internal/generate")) {
        struct err e;
        struct wire_request w;
        ASSERT(!wire_request_decode(body, &w, &e));
        if (w.seed == 1) /* the benchmark's mark for a stream: workers are not told */
            start_stream(req, true);
        else
            whole_wire(req);
    } else if (str_eq_c(httpd_method(req), "POST")) {
        if (memmem(body.p, body.n, "\"stream\": true", 14))
            start_stream(req, false);
        else
            httpd_reply(req, 200, "application/json", STR(whole));
    } else {
        httpd_reply(req, 200, "application/json",
                    STR("{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"object\":\"model\"}]}"));
    }
}

static int run_sink(uint16_t port)
{
    struct err e = {0};
    struct httpd *h;
    struct httpd_config c = {.loop = &loop,
                             .host = "127.0.0.1",
                             .port = port,
                             .max_body_bytes = 32u << 20,
                             .handler = sink};
    static uv_check_t turn;
    static uv_timer_t beat;
    if (httpd_start(&c, &h, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    uv_idle_init(&loop, &spin);
    uv_check_init(&loop, &turn);
    uv_check_start(&turn, on_turn);
    uv_timer_init(&loop, &beat);
    uv_timer_start(&beat, on_beat, 100, 100);
    return uv_run(&loop, UV_RUN_DEFAULT);
}

/* ---- load ---- */

struct load {
    struct conn_pool *pool;
    struct buf head, body;
    uint16_t port;
    uint64_t end_ns, n, errors;
    unsigned active;
    uint32_t *sample; /* microseconds */
    size_t mark;      /* offset in the body */
};
struct client {
    struct load *l;
    char *body; /* its own, where it has the mark */
    uint64_t start_ns;
};
static void start_one(struct client *c);

static void on_done(struct conn_call *call, int status, int code, bool stale, void *ctx)
{
    (void)call;
    struct client *c = ctx;
    struct load *l = c->l;
    uint64_t now = clock_mono_ns();
    if (stale || code || status != 200)
        l->errors++;
    else if (l->n < MAX_SAMPLES)
        l->sample[l->n++] = (uint32_t)((now - c->start_ns) / 1000);
    l->active--;
    if (now < l->end_ns)
        start_one(c);
    else if (!l->active)
        uv_stop(&loop);
}

static void start_one(struct client *c)
{
    struct load *l = c->l;
    struct err e;
    struct conn_request r = {.host = "127.0.0.1",
                             .port = l->port,
                             .head = buf_view(&l->head),
                             .body = buf_view(&l->body),
                             .on_done = on_done,
                             .ctx = c};
    if (c->body) {
        static uint32_t serial;
        char digits[9];
        snprintf(digits, sizeof digits, "%08x", ++serial + (uint32_t)getpid() * 100000u);
        memcpy(c->body + l->mark, digits, 8);
        r.body.p = c->body;
    }
    c->start_ns = clock_mono_ns();
    l->active++;
    if (!conn_start(l->pool, &r, &e)) {
        l->errors++;
        l->active--;
    }
}

static int read_file(const char *path, struct buf *out)
{
    FILE *f = fopen(path, "re");
    char piece[65536];
    size_t n;
    int rc = f ? 0 : -1;
    while (f && !rc && (n = fread(piece, 1, sizeof piece, f)))
        rc = buf_append(out, piece, n);
    if (f)
        fclose(f);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int run_load(uint16_t port, const char *file, unsigned connections, double seconds,
                    const char *path)
{
    struct load l = {.port = port, .sample = xcalloc(MAX_SAMPLES, sizeof(uint32_t))};
    buf_init(&l.head, 4096);
    buf_init(&l.body, 32u << 20);
    if (read_file(file, &l.body) || codec_write_head(&l.head, "POST", path, "127.0.0.1", NULL, NULL,
                                                     "application/json", l.body.n)) {
        fprintf(stderr, "can't read %s\n", file);
        return 1;
    }
    l.pool = conn_pool_new(&loop, connections);
    l.end_ns = clock_mono_ns() + (uint64_t)(seconds * 1e9);
    struct client *c = xcalloc(connections, sizeof *c);
    const char *mark = memmem(l.body.data, l.body.n, "@@@@@@@@", 8);
    for (unsigned i = 0; i < connections; i++) {
        c[i].l = &l;
        if (mark) {
            l.mark = (size_t)(mark - l.body.data);
            c[i].body = str_dup(buf_view(&l.body));
        }
        start_one(&c[i]);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    qsort(l.sample, l.n, sizeof *l.sample, by_value);
    printf("{\"requests\": %llu, \"errors\": %llu, \"p50_us\": %u, \"p99_us\": %u}\n",
           (unsigned long long)l.n, (unsigned long long)l.errors, l.n ? l.sample[l.n / 2] : 0,
           l.n ? l.sample[l.n * 99 / 100] : 0);
    return 0;
}

/* ---- tokenize ---- */

static int run_tokenize(const char *model, const char *file)
{
    struct tokenizer *t;
    struct err e = {0};
    struct buf text;
    struct ids ids;
    buf_init(&text, 32u << 20);
    ids_init(&ids, 1 << 20);
    if (read_file(file, &text) || tokenizer_open(model, &t, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    static struct block_name names[1 << 15];
    struct block_space space = {
        .model_revision = STR("r"), .kv_dtype = STR("f16"), .block_tokens = 32};
    struct block_name seed;
    block_seed(&space, &seed);
    uint64_t begin = clock_thread_cpu_ns(), encode_ns = 0, name_ns = 0;
    unsigned n = 0;
    for (; n < 3 || clock_thread_cpu_ns() - begin < 300 * NS_PER_MS; n++) {
        ids.n = 0;
        uint64_t a = clock_thread_cpu_ns();
        if (tokenizer_encode(t, buf_view(&text), TOKENIZE_PARSE_SPECIAL, &ids, &e))
            return 1;
        uint64_t b = clock_thread_cpu_ns();
        block_names(&seed, ids.id, ids.n, 32, names);
        encode_ns += b - a;
        name_ns += clock_thread_cpu_ns() - b;
    }
    printf("{\"tokens\": %zu, \"tokenize_us\": %.2f, \"name_us\": %.2f}\n", ids.n,
           (double)encode_ns / 1e3 / n, (double)name_ns / 1e3 / n);
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    log_init("bench-router", "text", LOG_WARN);
    uv_loop_init(&loop);
    if (argc == 3 && strcmp(argv[1], "sink") == 0)
        return run_sink((uint16_t)atoi(argv[2]));
    if (argc >= 6 && strcmp(argv[1], "load") == 0)
        return run_load((uint16_t)atoi(argv[2]), argv[3], (unsigned)atoi(argv[4]), atof(argv[5]),
                        argc > 6 ? argv[6] : "/v1/chat/completions");
    if (argc == 4 && strcmp(argv[1], "tokenize") == 0)
        return run_tokenize(argv[2], argv[3]);
    fprintf(stderr, "usage: router sink PORT | load PORT BODY CONNECTIONS SECONDS [PATH] | "
                    "tokenize MODEL TEXT\n");
    return 2;
}
