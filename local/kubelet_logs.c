/* GET pods/<name>/log: reads the files that the shims write; a follower looks again every 100 ms,
 * goes on through rotation and ends when the container has ended and everything was sent. */
#include "local/kubelet_int.h"

#include <errno.h>
#include <stdlib.h>

#define FOLLOW_MS  100
#define QUEUE_MAX  (4 << 20)
#define QUEUE_HIGH (512 << 10)

struct follow {
    struct httpd_req *req;
    struct kubelet *k;
    char *uid, *container;
    int attempt;
    struct klog_reader *reader;
    uv_timer_t *timer;
    bool follow;
};

static void follow_closed(struct httpd_req *req, bool gone, void *ctx)
{
    (void)req, (void)gone;
    struct follow *f = ctx;
    klog_reader_free(f->reader);
    kubelet_timer_free(f->timer);
    free(f->uid);
    free(f->container);
    free(f);
}

static struct kctr *container_of(struct kpod *p, const char *name)
{
    for (size_t i = 0; p && i < p->n_ctrs; i++) {
        if (!*name || strcmp(p->ctrs[i]->name, name) == 0)
            return p->ctrs[i];
    }
    return NULL;
}

/* Nothing more will be written to this attempt's log. */
static bool over(struct follow *f)
{
    struct kctr *c = container_of(kubelet_pod(f->k, f->uid), f->container);
    return !c || c->attempt != f->attempt || !kctr_live(c);
}

static void send_more(uv_timer_t *t)
{
    struct follow *f = t->data;
    struct buf b;
    bool ended = over(f); /* asked before reading: what was written before the end is then read */
    bool stop = false;
    buf_init(&b, 1 << 20);
    while (!stop && httpd_stream_queued(f->req) < QUEUE_HIGH) {
        buf_reset(&b);
        int64_t n = klog_reader_next(f->reader, &b);
        if (n > 0 && httpd_stream_write(f->req, buf_view(&b))) {
            httpd_abort(f->req);
            buf_fini(&b);
            return;
        }
        if (n <= 0) {
            stop = n < 0 || ended || !f->follow;
            if (!stop)
                break;
        }
    }
    buf_fini(&b);
    if (stop) {
        uv_timer_stop(t);
        httpd_stream_end(f->req);
    } else {
        uv_timer_start(t, send_more,
                       httpd_stream_queued(f->req) < QUEUE_HIGH && !f->follow ? 0 : FOLLOW_MS, 0);
    }
}

int kubelet_log(const struct server_log_query *q, struct httpd_req *req, void *ctx, struct err *e)
{
    struct kubelet *k = ctx;
    struct kpod *p = kubelet_pod_named(k, q->ns, q->pod);
    struct kctr *c = container_of(p, q->container ? q->container : "");
    if (!c || c->attempt < 0)
        return err_set(e, EAGAIN, "container \"%s\" in pod \"%s\" is waiting to start: %s",
                       q->container ? q->container : "", q->pod,
                       c && c->wait_reason ? c->wait_reason : "ContainerCreating");
    int attempt = c->attempt - (q->previous ? 1 : 0);
    if (attempt < 0)
        return err_set(e, ENOENT, "previous terminated container \"%s\" in pod \"%s\" not found",
                       c->name, q->pod);
    struct klog_options o = {.tail = q->tail_lines,
                             .limit_bytes = q->limit_bytes > 0 ? q->limit_bytes : 0,
                             .since_wall_ns =
                                 (uint64_t)(q->since_wall_ns > 0 ? q->since_wall_ns : 0),
                             .timestamps = q->timestamps};
    CLEANUP(free_charp) char *dir = kctr_dir(c, attempt);
    CLEANUP(free_charp) char *path = xasprintf("%s/log", dir);
    struct klog_reader *reader;
    int r = klog_reader_new(path, &o, &reader, e);
    if (r)
        return r;
    struct follow *f = xcalloc(1, sizeof *f);
    *f = (struct follow){.req = req,
                         .k = k,
                         .uid = xstrdup(p->uid),
                         .container = xstrdup(c->name),
                         .attempt = attempt,
                         .reader = reader,
                         .follow = q->follow};
    f->timer = kubelet_timer(k, f);
    httpd_on_close(req, follow_closed, f);
    httpd_stream_start(req, 200, "text/plain", QUEUE_MAX);
    uv_timer_start(f->timer, send_more, 0, 0);
    return 0;
}
