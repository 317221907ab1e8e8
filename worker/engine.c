#include "worker/engine.h"

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "worker/engine_int.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define PUBLISH_NS   (20 * NS_PER_MS)
#define CHECK_NS     (500 * NS_PER_MS)
#define LIST_NS      (200 * NS_PER_MS)
#define LISTED_MAX   64u
#define POLL_IDLE_MS 500
#define POLL_BUSY_MS 20 /* something waits for blocks, a grant or a peer */

/* ---- posting and fetching (any thread) ---- */

static void post(struct engine *g, struct mail m)
{
    struct mail *x = xmalloc(sizeof *x);
    *x = m;
    x->next = NULL;
    pthread_mutex_lock(&g->lock);
    *g->mail_tail = x;
    g->mail_tail = &x->next;
    pthread_mutex_unlock(&g->lock);
    uint64_t one = 1;
    if (write(g->wake_fd, &one, sizeof one) < 0)
        ASSERT(errno == EAGAIN);
}

void engine_submit(struct engine *g, uint64_t handle, void *body, size_t n)
{
    post(g, (struct mail){.kind = MAIL_SUBMIT, .a = handle, .body = body, .n = n});
}

void engine_cancel(struct engine *g, uint64_t handle)
{
    post(g, (struct mail){.kind = MAIL_CANCEL, .a = handle});
}

void engine_cancel_id(struct engine *g, uint64_t id0, uint64_t id1)
{
    post(g, (struct mail){.kind = MAIL_CANCEL_ID, .a = id0, .b = id1});
}

void engine_set_role(struct engine *g, enum wire_role role)
{
    post(g, (struct mail){.kind = MAIL_ROLE, .a = role});
}

void engine_set_sleep(struct engine *g, bool wanted)
{
    post(g, (struct mail){.kind = MAIL_SLEEP, .a = wanted});
}

void engine_drain(struct engine *g, uint64_t deadline_ns)
{
    post(g, (struct mail){.kind = MAIL_DRAIN, .a = deadline_ns});
}

void engine_take(struct engine *g, struct engine_output *out)
{
    pthread_mutex_lock(&g->lock);
    *out = (struct engine_output){g->out, g->out_status, g->out_events, g->n_out_events,
                                  g->out_requests};
    g->out = NULL;
    g->out_tail = &g->out;
    g->out_events = NULL;
    g->out_requests = NULL;
    g->n_out_events = g->cap_out_events = 0;
    pthread_mutex_unlock(&g->lock);
}

void engine_records_free(struct engine_records *r)
{
    while (r) {
        struct engine_records *next = r->next;
        buf_fini(&r->bytes);
        free(r);
        r = next;
    }
}

uint16_t engine_xfer_port(const struct engine *g)
{
    return g->xfer ? xfer_port(g->xfer) : 0;
}

/* ---- messages, on the engine's thread ---- */

static const char *refusal(const struct engine *g)
{
    if (g->status.failed)
        return "failed";
    if (g->draining)
        return "draining";
    if (g->asleep)
        return "asleep";
    return g->role == WIRE_ROLE_DECODE || g->role == WIRE_ROLE_UNIFIED ? NULL : "wrong_role";
}

static void submit(struct engine *g, struct mail *m)
{
    struct request *r;
    struct err e = {0};
    const char *why = refusal(g);
    if (why) {
        free(m->body);
        emit_refusal(g, m->a, 503, why, "this worker takes no requests now", true);
        return;
    }
    if (request_new(m->body, m->n, &g->c.seed, g->c.kv.block_tokens, g->vocab, g->context, &r,
                    &e)) {
        emit_refusal(g, m->a, 400, "invalid_request", e.msg, false);
        return;
    }
    r->handle = m->a;
    r->arrived_ns = g->now_ns;
    if (r->wire.deadline_ms)
        r->deadline_ns = g->now_ns + r->wire.deadline_ms * NS_PER_MS;
    request_link(g, r);
    bool echo = request_reports_prompt(r);
    if (r->wire.max_tokens <= r->wire.n_generated && !echo) {
        for (uint16_t i = 0; i < r->wire.n; i++)
            emit_finish(g, &r->seqs[i], WIRE_FINISH_LENGTH);
    } else if (!handover_order(g, r)) {
        queue_push(g, &r->seqs[0]);
        seq_expect(&r->seqs[0], g->kv);
    }
}

static void cancel(struct engine *g, struct request *r)
{
    handover_abandon(g, r, "the client left");
    request_stop(g, r);
    r->handle = 0;
    metric_add(metric_series(g->m.ended, "cancelled"), 1);
}

static void drain_now(struct engine *g)
{
    for (struct request *r = g->requests; r; r = r->next)
        emit_error(g, r, 503, "draining", "the worker had to stop before the answer was complete",
                   true);
    g->drain_deadline_ns = UINT64_MAX;
}

static void take_mail(struct engine *g, struct mail *m)
{
    struct request *r = g->requests;
    switch (m->kind) {
    case MAIL_SUBMIT: submit(g, m); break;
    case MAIL_CANCEL:
        while (r && (r->ended || r->handle != m->a))
            r = r->next;
        if (r)
            cancel(g, r);
        break;
    case MAIL_CANCEL_ID:
        while (r && (r->ended || r->order_id || r->wire.id[0] != m->a || r->wire.id[1] != m->b))
            r = r->next;
        if (r)
            emit_error(g, r, 499, "cancelled", "the request was cancelled", false);
        break;
    case MAIL_ROLE: g->role = (enum wire_role)m->a; break;
    case MAIL_SLEEP: g->sleep_wanted = m->a != 0; break;
    case MAIL_DRAIN:
        g->draining = true;
        g->drain_deadline_ns = m->a;
        break;
    case MAIL_STOP: g->stopping = true; break;
    }
}

static void take_mails(struct engine *g)
{
    pthread_mutex_lock(&g->lock);
    struct mail *m = g->mail;
    g->mail = NULL;
    g->mail_tail = &g->mail;
    pthread_mutex_unlock(&g->lock);
    while (m) {
        struct mail *next = m->next;
        take_mail(g, m);
        free(m);
        m = next;
    }
}

/* ---- telling the others ---- */

static void check_pool(struct engine *g)
{
    uint32_t *refs = xcalloc(kv_counts(g->kv).total, sizeof *refs);
    for (const struct request *r = g->requests; r; r = r->next)
        for (uint16_t i = 0; i < r->wire.n; i++)
            for (uint32_t b = 0; b < r->seqs[i].n_blocks; b++)
                refs[r->seqs[i].blocks[b]]++;
    for (const struct inbound *in = g->inbounds; in; in = in->next) {
        for (uint32_t b = 0; b < in->n_have; b++)
            refs[in->have[b]]++;
        for (uint32_t b = 0; b < in->n_granted; b++)
            refs[in->granted[b]]++;
    }
    const char *wrong = kv_check(g->kv, refs);
    if (wrong)
        log_error("the KV pool's accounts are wrong", LS("what", wrong));
    snprintf(g->status.check, sizeof g->status.check, "%s", wrong ? wrong : "ok");
    free(refs);
    g->checked_ns = g->now_ns;
}

static void fill_status(struct engine *g)
{
    struct engine_status *s = &g->status;
    struct kv_counts c = kv_counts(g->kv);
    struct wire_load *l = &s->load;
    l->running = l->waiting = s->requests = s->orders = s->inbound = 0;
    l->waiting_tokens = l->resident_tokens = 0;
    for (const struct request *r = g->requests; r; r = r->next) {
        *(r->order_id ? &s->orders : &s->requests) += 1;
        l->running += r->seqs[0].state == SEQ_RUNNING || r->seqs[0].state == SEQ_ENDED;
        l->waiting += r->seqs[0].state == SEQ_WAITING || r->seqs[0].state == SEQ_REMOTE;
    }
    for (const struct seq *q = g->waiting; q; q = q->next)
        l->waiting_tokens += q->n_tokens - q->expected;
    for (uint32_t i = 0; i < g->n_running; i++) {
        l->resident_tokens += g->running[i]->computed;
        l->waiting_tokens += g->running[i]->n_tokens - g->running[i]->computed - 1;
    }
    for (const struct inbound *in = g->inbounds; in; in = in->next)
        s->inbound++;
    l->kv_blocks = c.total - c.lost;
    l->kv_blocks_used = c.used + c.quarantined;
    l->kv_blocks_cached = c.cached;
    l->block_tokens = g->c.kv.block_tokens;
    l->prefill_tokens_per_s = g->prefill_tokens_per_s;
    l->decode_step_s = g->decode_step_s;
    s->kv_quarantined = c.quarantined;
    s->in_air = g->n_air;
    s->role = (uint8_t)g->role;
    s->draining = g->draining;
    s->asleep = g->asleep;
    s->drained = g->draining && !g->requests && !g->inbounds;
    metric_set(g->m.waiting, l->waiting);
    metric_set(g->m.running, l->running);
    metric_set(g->m.blocks_free, c.free - c.cached);
    metric_set(g->m.blocks_cached, c.cached);
    metric_set(g->m.blocks_used, c.used);
    metric_set(g->m.blocks_quarantined, c.quarantined);
    deal_measure(g);
}

static const char *phase_of(const struct request *r)
{
    static const char *const name[] = {
        "unborn", "queued", "running", "remote prefill", "held for transfer", "ended"};
    const struct seq *s = &r->seqs[0];
    if (s->state == SEQ_RUNNING)
        return s->computed + 1 < s->n_tokens || !r->opened ? "prefill" : "decode";
    return name[s->state];
}

/* What is alive, for /debug/state: heap, NULL when it could not be written. */
static char *list_requests(struct engine *g)
{
    struct buf b;
    uint32_t n = 0;
    buf_init(&b, 1u << 20);
    int rc = buf_cstr(&b, "[");
    for (const struct request *r = g->requests; r && !rc && n < LISTED_MAX; r = r->next, n++) {
        const struct seq *s = &r->seqs[0];
        uint32_t blocks = 0;
        for (uint16_t i = 0; i < r->wire.n; i++)
            blocks += r->seqs[i].n_blocks;
        rc = buf_printf(
            &b,
            "%s{\"id\":\"%016llx%016llx\",\"kind\":\"%s\",\"phase\":\"%s\",\"choices\":%u,"
            "\"prompt\":%u,\"tokens\":%u,\"computed\":%u,\"blocks\":%u,\"preemptions\":%u,"
            "\"age_ms\":%llu}",
            n ? "," : "", (unsigned long long)r->wire.id[0], (unsigned long long)r->wire.id[1],
            r->order_id ? "order" : "request", phase_of(r), r->wire.n, r->wire.n_prompt,
            s->n_tokens, s->computed, blocks, r->preemptions,
            (unsigned long long)((g->now_ns - r->arrived_ns) / NS_PER_MS));
    }
    rc = rc ? rc : buf_cstr(&b, "]");
    char *text = rc ? NULL : buf_take(&b);
    buf_fini(&b);
    g->listed_ns = g->now_ns;
    return text;
}

static void publish(struct engine *g, bool idle)
{
    size_t n;
    const struct kv_event *ev = kv_events(g->kv, &n);
    if (g->now_ns - g->checked_ns > CHECK_NS)
        check_pool(g);
    fill_status(g);
    char *list = idle || g->now_ns - g->listed_ns > LIST_NS ? list_requests(g) : NULL;
    pthread_mutex_lock(&g->lock);
    g->out_status = g->status;
    if (list) {
        free(g->out_requests);
        g->out_requests = list;
    }
    if (g->n_out_events + n > g->cap_out_events) {
        g->cap_out_events = 2 * (g->n_out_events + n);
        g->out_events = xrealloc(g->out_events, g->cap_out_events * sizeof *g->out_events);
    }
    if (n)
        memcpy(g->out_events + g->n_out_events, ev, n * sizeof *ev);
    g->n_out_events += n;
    pthread_mutex_unlock(&g->lock);
    kv_events_clear(g->kv);
    g->published_ns = g->now_ns;
    g->notify_due = true;
}

static void hand_out(struct engine *g, bool idle)
{
    for (struct request *r = g->requests, *next; r; r = next) {
        next = r->next;
        if (r->ended && r->n_flying)
            continue;
        emit_flush(g, r);
        if (r->ended)
            request_unlink_free(g, r);
    }
    if (idle || clock_mono_ns() - g->published_ns > PUBLISH_NS)
        publish(g, idle);
    if (g->notify_due)
        g->c.notify(g->c.notify_ctx);
    g->notify_due = false;
}

/* ---- the thread ---- */

static void expire(struct engine *g)
{
    for (struct request *r = g->requests; r; r = r->next)
        if (r->deadline_ns && r->deadline_ns <= g->now_ns && !r->ended)
            emit_error(g, r, 504, "deadline_exceeded", "the request's deadline passed", false);
}

static void rest(struct engine *g)
{
    struct pollfd p[2] = {{.fd = g->wake_fd, .events = POLLIN},
                          {.fd = g->xfer ? xfer_fd(g->xfer) : -1, .events = POLLIN}};
    uint64_t n;
    poll(p, 2, g->requests || g->inbounds ? POLL_BUSY_MS : POLL_IDLE_MS);
    if ((p[0].revents & POLLIN) && read(g->wake_fd, &n, sizeof n) < 0)
        ASSERT(errno == EAGAIN);
}

static void *engine_thread(void *arg)
{
    struct engine *g = arg;
    pthread_setname_np(pthread_self(), "engine");
    while (!g->stopping) {
        g->now_ns = clock_mono_ns();
        take_mails(g);
        engine_rung(g);
        mask_look(g);
        handover_events(g);
        if (g->draining && g->drain_deadline_ns <= g->now_ns)
            drain_now(g);
        expire(g);
        handover_grant(g);
        if (g->xfer)
            handover_ask(g);
        bool ran = step_run(g);
        hand_out(g, !ran);
        if (!ran)
            rest(g);
    }
    while (g->n_air)
        flight_land(g);
    return NULL;
}

static void metrics_init(struct engine_metrics *m)
{
    m->waiting = metric_new(METRIC_GAUGE, "baton_worker_requests_waiting",
                            "Requests and prefill orders that wait");
    m->running = metric_new(METRIC_GAUGE, "baton_worker_requests_running",
                            "Requests and prefill orders that run");
    struct metric_family *f = metric_family(METRIC_GAUGE, "baton_worker_kv_blocks",
                                            "Blocks of the KV pool by state", "state", NULL, 0);
    m->blocks_used = metric_series(f, "used");
    m->blocks_cached = metric_series(f, "cached");
    m->blocks_free = metric_series(f, "free");
    m->blocks_quarantined = metric_series(f, "quarantined");
    m->prompt_tokens = metric_new(METRIC_COUNTER, "baton_worker_prompt_tokens_total",
                                  "Prompt tokens of requests begun");
    m->cached_tokens = metric_new(METRIC_COUNTER, "baton_worker_cached_tokens_total",
                                  "Prompt tokens found in the prefix cache");
    m->generated_tokens =
        metric_new(METRIC_COUNTER, "baton_worker_generated_tokens_total", "Tokens generated");
    m->preemptions = metric_new(METRIC_COUNTER, "baton_worker_preemptions_total",
                                "Sequences preempted for lack of KV blocks");
    m->fallbacks = metric_new(METRIC_COUNTER, "baton_worker_prefill_fallbacks_total",
                              "Prompts computed here because their prefill worker could not");
    m->kv_in = metric_new(METRIC_COUNTER, "baton_worker_kv_received_bytes_total",
                          "KV received from prefill workers");
    m->kv_out = metric_new(METRIC_COUNTER, "baton_worker_kv_sent_bytes_total",
                           "KV pushed to decode workers");
    m->ttft = metric_new(METRIC_HISTOGRAM, "baton_worker_time_to_first_token_seconds",
                         "From arrival here to the first token");
    m->queue = metric_new(METRIC_HISTOGRAM, "baton_worker_queue_seconds",
                          "From arrival here to the first step");
    m->step = metric_new(METRIC_HISTOGRAM, "baton_worker_step_seconds",
                         "Duration of a step of the engine");
    m->step_rows = metric_new(METRIC_COUNTER, "baton_worker_step_rows_total",
                              "Rows (tokens) computed by steps");
    m->bubble = metric_new(METRIC_GAUGE, "baton_worker_pipeline_bubble_ratio",
                           "Part of the stages' time in steps that they waited for others");
    m->stage_busy =
        metric_family(METRIC_COUNTER, "baton_worker_stage_busy_seconds_total",
                      "Time in which a stage of the pipeline computed", "stage", NULL, 0);
    m->pipeline_s = metric_new(METRIC_COUNTER, "baton_worker_pipeline_seconds_total",
                               "Time in which the pipeline had something to compute");
    m->collectives = metric_new(METRIC_COUNTER, "baton_worker_all_reduces_total",
                                "All-reduces between the ranks of this stage");
    m->collective_s = metric_new(METRIC_COUNTER, "baton_worker_collective_seconds_total",
                                 "Time of rank 0 in collectives of its stage, waiting included");
    m->drafted = metric_new(METRIC_COUNTER, "baton_worker_draft_tokens_total",
                            "Tokens guessed by prompt lookup and verified in a step");
    m->accepted = metric_new(METRIC_COUNTER, "baton_worker_draft_tokens_accepted_total",
                             "Of them those that were the model's own: steps saved");
    m->device_tokens = metric_new(METRIC_COUNTER, "baton_worker_device_tokens_total",
                                  "Tokens that a device chose itself: their logits stayed there");
    deal_metrics(m);
    m->ended = metric_family(METRIC_COUNTER, "baton_worker_ends_total",
                             "Choices and requests that ended, by reason", "reason", NULL, 0);
}

static int open_xfer(struct engine *g, struct err *e)
{
    const struct engine_config *c = &g->c;
    struct xfer_cfg x = {.host = c->xfer_host,
                         .port = c->xfer_port,
                         .incarnation = c->incarnation,
                         .secret = c->secret,
                         .secret_len = c->secret_len,
                         .shm_dir = c->shm_dir,
                         .policy = c->xfer_policy,
                         .pool = c->pool,
                         .slices = c->slices,
                         .n_slices = c->n_slices,
                         .n_blocks = kv_counts(g->kv).total,
                         .n_layers = c->kv.n_layers,
                         .block_bytes = c->kv.block_bytes,
                         .piece_bytes = c->kv.piece_bytes,
                         .halves = c->kv.halves,
                         .n_heads = c->kv.n_kv_heads,
                         .layout = c->layout};
    return c->xfer_host ? xfer_new(&x, &g->xfer, e) : 0;
}

static void engine_free(struct engine *g)
{
    flights_free(g);
    for (struct request *r = g->requests; r; r = r->next)
        request_stop(g, r);
    if (g->xfer)
        xfer_free(g->xfer);
    while (g->requests)
        request_unlink_free(g, g->requests);
    while (g->inbounds) {
        struct inbound *in = g->inbounds;
        g->inbounds = in->next;
        free(in->have);
        free(in->granted);
        free(in);
    }
    for (struct mail *m = g->mail, *next; m; m = next) {
        next = m->next;
        free(m->body);
        free(m);
    }
    engine_records_free(g->out);
    group_free(g->group);
    kv_free(g->kv);
    sampler_free(g->sampler);
    step_free(g);
    drafts_fini(&g->drafts);
    free(g->logits);
    free(g->running);
    free(g->out_events);
    free(g->out_requests);
    close_fdp(&g->wake_fd);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static uint32_t data_ranks(const struct engine_config *c)
{
    return c->model_layout.data > 1 ? c->model_layout.data : 1;
}

static struct engine *engine_make(const struct engine_config *c)
{
    const struct model_config *mc = model_config(c->model);
    struct engine *g = xcalloc(1, sizeof *g);
    g->c = *c;
    g->role = c->role;
    g->vocab = mc->vocab;
    if (mc->eos != MODEL_NO_TOKEN)
        g->eog[g->n_eog++] = mc->eos;
    if (mc->eot != MODEL_NO_TOKEN && mc->eot != mc->eos)
        g->eog[g->n_eog++] = mc->eot;
    g->context = c->max_context;
    uint64_t room = (uint64_t)c->n_blocks * c->kv.block_tokens;
    g->context = room < g->context ? (uint32_t)room : g->context;
    uint32_t data = data_ranks(c);
    g->kv = kv_new(c->n_blocks * data, data, c->kv.block_tokens);
    g->sampler = sampler_new(mc->vocab);
    g->mail_tail = &g->mail;
    g->out_tail = &g->out;
    g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&g->lock, NULL);
    drafts_init(&g->drafts);
    metrics_init(&g->m);
    snprintf(g->status.check, sizeof g->status.check, "ok");
    return g;
}

static int make_group(struct engine *g, struct err *e)
{
    const struct engine_config *c = &g->c;
    struct group_config o = {.model = c->model,
                             .layout = c->model_layout,
                             .world = c->world,
                             .pool = c->pool.base,
                             .device = c->device,
                             .work = {.threads = c->threads,
                                      .max_rows = c->max_rows,
                                      .block_tokens = c->kv.block_tokens,
                                      .kv_dtype = c->kv_dtype,
                                      .pool_blocks = c->n_blocks,
                                      .group = c->dispatch},
                             .halves = c->halves};
    for (uint32_t r = 0; c->world && r < comm_ranks(c->world); r++) {
        o.apart[r] = c->apart[r];
        o.copies[r] = c->copies[r];
    }
    return group_new(&o, &g->group, e);
}

int engine_start(const struct engine_config *c, struct engine **out, struct err *e)
{
    struct engine *g = engine_make(c);
    void *logits = NULL;
    int rc = g->wake_fd < 0 ? err_set(e, errno, "engine: no eventfd") : 0;
    if (!rc && posix_memalign(&logits, 64, (size_t)c->logit_rows * g->vocab * sizeof(float)))
        rc = err_set(e, ENOMEM, "engine: no memory for logits");
    g->logits = logits;
    rc = rc ? rc : make_group(g, e);
    if (!rc)
        flights_new(g);
    rc = rc ? rc : open_xfer(g, e);
    if (!rc) {
        g->now_ns = clock_mono_ns();
        mask_start(g);
        publish(g, true);
        g->notify_due = false;
        int prc = pthread_create(&g->thread, NULL, engine_thread, g);
        rc = prc ? err_set(e, prc, "engine: no thread") : 0;
    }
    if (rc) {
        engine_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

void engine_stop(struct engine *g)
{
    if (!g)
        return;
    post(g, (struct mail){.kind = MAIL_STOP});
    pthread_join(g->thread, NULL);
    struct err e = {0};
    if (group_stop(g->group, &e))
        log_warn("the other ranks could not be told to stop", LERR(&e));
    engine_free(g);
}
