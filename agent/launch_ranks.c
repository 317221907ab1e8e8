/* The rank processes of this pod (launch_int.h): they start together and end together. */
#include "agent/launch_int.h"

#include "lib/base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define LAUNCHER_FD 3
#define SEGMENT_FD  4
#define GRACE_MS    2000 /* a rank whose socket ended */

static uint32_t all_ranks(const struct launch *l)
{
    return (uint32_t)(l->opt.tp * l->opt.pp * l->opt.dp);
}

/* ---- what they are ---- */

static void take_rank(struct rank *r, struct launch *l, uint32_t number, const char *layout,
                      uint64_t bytes)
{
    if (r->weights_fd >= 0 && (r->weights_bytes != bytes || strcmp(r->layout, layout) != 0))
        close_fdp(&r->weights_fd);
    free(r->layout);
    r->l = l;
    r->number = number;
    r->layout = xstrdup(layout);
    r->weights_bytes = bytes;
}

bool ranks_plan(struct launch *l, const json_t *plan)
{
    const json_t *ranks = json_object_get(plan, "ranks"), *x;
    uint32_t want = all_ranks(l) / (uint32_t)l->opt.pods, n = 0;
    size_t i;
    if (l->n_ranks != want || l->first_rank != l->index * want)
        ranks_drop_weights(l);
    l->n_ranks = want;
    l->first_rank = l->index * want;
    if (!ranks && want == 1) { /* all there is to say is at the top */
        take_rank(&l->ranks[0], l, l->first_rank, json_str_at(plan, "layout", ""),
                  (uint64_t)json_int_at(plan, "weights_bytes", 0));
        return true;
    }
    json_array_foreach (ranks, i, x) {
        int64_t number = json_int_at(x, "rank", -1), bytes = json_int_at(x, "weights_bytes", 0);
        if (n == want || number != (int64_t)(l->first_rank + n) || bytes <= 0)
            return false;
        take_rank(&l->ranks[n++], l, (uint32_t)number, json_str_at(x, "layout", ""),
                  (uint64_t)bytes);
    }
    return n == want;
}

bool ranks_loaded(const struct launch *l)
{
    for (uint32_t i = 0; i < l->n_ranks; i++)
        if (l->ranks[i].weights_fd < 0)
            return false;
    return l->n_ranks > 0;
}

void ranks_drop_weights(struct launch *l)
{
    for (uint32_t i = 0; i < LAUNCH_RANKS_MAX; i++)
        close_fdp(&l->ranks[i].weights_fd);
}

/* ---- what they say ---- */

/* Whether the others may go on without it: rank 0, which is here, said so. */
static bool may_be_masked(const struct rank *r)
{
    const struct launch *l = r->l;
    return r->number && l->first_rank == 0 && l->ranks[0].child &&
           json_bool_at(l->worker_status, "maskable", false);
}

/* It has ended and is masked, or is about to be. */
static bool is_let_go(const struct rank *r)
{
    return r->masked || (!r->child && uv_is_active((const uv_handle_t *)&r->l->masking));
}

static void take_masked(struct launch *l, const json_t *msg)
{
    size_t i;
    json_t *x;
    bool all = true;
    json_array_foreach (json_object_get(msg, "masked"), i, x) {
        int64_t n = json_integer_value(x);
        if (n <= 0 || n >= (int64_t)l->n_ranks || l->ranks[n].masked)
            continue;
        l->ranks[n].masked = true;
        log_warn("a rank has died, the others go on without it", LI("rank", n));
    }
    for (uint32_t k = 0; k < l->n_ranks; k++)
        all = all && (l->ranks[k].masked || (l->ranks[k].child && l->ranks[k].lines));
    if (all)
        uv_timer_stop(&l->masking);
}

static void on_status(struct rank *r, const json_t *msg)
{
    struct launch *l = r->l;
    bool is = json_bool_at(msg, "ready", false);
    if (is && !r->ready)
        log_info("worker ready", LI("rank", r->number), LS("role", json_str_at(msg, "role", "")),
                 LI("after_ms", (clock_mono_ns() - l->started_ns) / NS_PER_MS));
    r->ready = is;
    if (r != &l->ranks[0]) {
        launch_report(l);
        return;
    }
    json_decref(l->worker_status);
    l->worker_status = json_deep_copy(msg);
    take_masked(l, msg);
    if (is && !l->ready_ns)
        l->ready_ns = clock_mono_ns();
    launch_report(l);
}

static void on_message(struct lines *lines, const json_t *msg, void *ctx)
{
    (void)lines;
    struct rank *r = ctx;
    const char *type = json_str_at(msg, "type", "");
    if (strcmp(type, "status") == 0)
        on_status(r, msg);
    else if (strcmp(type, "drained") == 0)
        worker_drained(r->l);
    else
        log_warn("unknown message from the worker", LS("type", type));
}

static void on_limit(uv_timer_t *t)
{
    ranks_kill(t->data, SIGKILL);
}

static void await_mask(struct rank *r)
{
    struct launch *l = r->l;
    if (!r->masked && !uv_is_active((uv_handle_t *)&l->masking))
        uv_timer_start(&l->masking, on_limit, GRACE_MS, 0);
}

static void on_closed(struct lines *lines, const char *why, void *ctx)
{
    (void)lines;
    struct rank *r = ctx;
    struct launch *l = r->l;
    r->lines = NULL;
    log_debug("the worker closed its socket", LI("rank", r->number), LS("why", why));
    if (may_be_masked(r))
        await_mask(r);
    else if (r->child &&
             !uv_is_active((uv_handle_t *)&l->limit)) /* nothing can be told to it now */
        uv_timer_start(&l->limit, on_limit, GRACE_MS, 0);
}

void ranks_tell(struct launch *l, json_t *msg)
{
    struct rank *r =
        &l->ranks[0]; /* in other pods: the first one follows, and only hears of ends */
    if (l->first_rank == 0 && r->lines && lines_send(r->lines, msg, -1))
        log_warn("the worker does not listen");
    json_decref(msg);
}

/* For people: "3 of 4 ranks, masked: [2]". */
static void put_masked(const json_t *worker, uint32_t ranks, json_t *o)
{
    const json_t *masked = json_object_get(worker, "masked");
    char text[320];
    size_t i, n = json_array_size(masked), at;
    if (!n || n > ranks)
        return;
    at = (size_t)snprintf(text, sizeof text, "%u of %u ranks, masked: [", ranks - (uint32_t)n,
                          ranks);
    for (i = 0; i < n && at < sizeof text - 8; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i ? ", %d" : "%d",
                               (int)json_integer_value(json_array_get(masked, i)));
    snprintf(text + at, sizeof text - at, "]");
    json_object_set_new(o, "degraded", json_string(text));
}

bool ranks_status(const struct launch *l, json_t *o)
{
    const json_t *s = l->step == STEP_RUN ? l->worker_status : NULL;
    bool ready = s != NULL, draining = l->draining || json_bool_at(s, "draining", false);
    for (uint32_t i = 0; i < l->n_ranks; i++)
        ready = ready && (l->ranks[i].ready || is_let_go(&l->ranks[i]));
    ready = ready && !draining;
    json_object_set_new(o, "ready", json_boolean(ready));
    json_object_set_new(o, "draining", json_boolean(draining));
    if (s) { /* a pod without rank 0 has the role that it is told: it does what rank 0 says */
        const char *role = l->first_rank && l->role ? l->role : json_str_at(s, "role", "");
        json_object_set_new(o, "role", json_string(role));
        json_object_set_new(o, "rung", json_string(json_str_at(s, "rung", "hot")));
        put_masked(s, l->n_ranks, o);
    }
    return ready;
}

/* ---- ends ---- */

void ranks_kill(struct launch *l, int sig)
{
    for (uint32_t i = 0; i < l->n_ranks; i++)
        if (l->ranks[i].child) {
            l->ranks[i].ending |= sig == SIGKILL;
            child_signal(l->ranks[i].child, sig);
        }
}

static const char *reason_of(int sig, int code, char text[32])
{
    if (sig == SIGKILL)
        return "Killed"; /* by a person, or by the kernel for want of memory */
    if (sig)
        snprintf(text, 32, "Signal%d", sig);
    else
        snprintf(text, 32, code == 0 ? "Ended" : "Error");
    return text;
}

/* The first to end says why; one that was killed from outside knows better than those who saw it.
 */
static void note_end(struct launch *l, const struct rank *r, struct child *c)
{
    char who[48] = "the worker", text[32];
    int code = child_exit_code(c), sig = child_exit_signal(c);
    const char *line = child_last_line(c), *colon = *line ? ": " : "";
    bool outside = sig && !r->ending;
    if (l->end_why && (!outside || l->end_signal))
        return;
    free(l->end_why);
    free(l->end_reason);
    if (all_ranks(l) > 1)
        snprintf(who, sizeof who, "rank %u of %u", r->number, all_ranks(l));
    l->end_why =
        sig ? xasprintf("%s was ended by signal %d (%s)%s%s", who, sig, strsignal(sig), colon, line)
            : xasprintf("%s ended with code %d%s%s", who, code, colon, line);
    l->end_reason = xstrdup(reason_of(sig, code, text));
    l->end_code = code;
    l->end_signal = sig;
}

static void on_end(struct child *c, void *ctx)
{
    struct rank *r = ctx;
    struct launch *l = r->l;
    note_end(l, r, c);
    r->child = NULL;
    r->ready = false;
    if (r->lines)
        lines_close(r->lines);
    r->lines = NULL;
    if (--l->alive > 0) {
        /* In peace they all end by themselves, a moment later. */
        if (child_exit_signal(c) && may_be_masked(r))
            await_mask(r);
        else if (l->step == STEP_END && child_exit_code(c) == 0)
            uv_timer_start(&l->limit, on_limit, GRACE_MS, 0);
        else
            ranks_kill(l, SIGKILL);
        return;
    }
    uv_timer_stop(&l->limit);
    uv_timer_stop(&l->masking);
    close_fdp(&l->segment_fd);
    json_decref(l->worker_status);
    l->worker_status = NULL;
    worker_ended(l);
}

/* ---- starts ---- */

static int spawn(struct launch *l, struct rank *r, struct err *e)
{
    int pair[2];
    char launcher[40], segment[40];
    snprintf(launcher, sizeof launcher, "BATON_LAUNCHER_FD=%d", LAUNCHER_FD);
    snprintf(segment, sizeof segment, "BATON_COMM_FD=%d", SEGMENT_FD);
    const char *argv[] = {l->worker_path, NULL};
    const char *env[] = {launcher, l->segment_fd >= 0 ? segment : NULL, NULL};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
        return err_set(e, errno, "no socket for the worker: %s", strerror(errno));
    fcntl(pair[1], F_SETFL, 0); /* the worker's end blocks unless it says otherwise */
    struct child_config c = {.loop = &l->loop,
                             .file = l->worker_path,
                             .argv = argv,
                             .extra_env = env,
                             .pass_fd = pair[1],
                             .as_fd = LAUNCHER_FD,
                             .also_fd = l->segment_fd,
                             .also_as = l->segment_fd >= 0 ? SEGMENT_FD : 0,
                             .on_exit = on_end,
                             .ctx = r};
    struct lines_handlers h = {.on_message = on_message, .on_closed = on_closed, .ctx = r};
    r->ready = r->ending = r->masked = false;
    int rc = child_start(&c, &r->child, e);
    close(pair[1]);
    if (rc || (rc = lines_new(&l->loop, pair[0], &h, &r->lines, e)))
        close(pair[0]);
    if (rc && r->child) {
        child_abandon(r->child);
        r->child = NULL;
    }
    return rc;
}

static void send_start(struct launch *l, struct rank *r, const char *incarnation)
{
    json_t *own = l->peers ? NULL : json_pack("[s]", l->opt.pod_ip);
    CLEANUP(json_decrefp)
    json_t *o =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s, s:I, s:I, s:O}", "type",
                  "start", "rank", (int)r->number, "ranks", (int)all_ranks(l), "ranks_per_pod",
                  (int)l->n_ranks, "tensor", (int)l->opt.tp, "pipeline", (int)l->opt.pp, "expert",
                  (int)l->opt.ep, "data", (int)l->opt.dp, "role", l->role, "incarnation",
                  incarnation, "weights_bytes", (json_int_t)r->weights_bytes, "epoch",
                  (json_int_t)l->epoch, "peers", l->peers ? l->peers : own);
    json_decref(own);
    if (r->lines && lines_send(r->lines, o, r->weights_fd))
        log_warn("the worker does not listen");
    log_info("worker started", LI("rank", r->number), LI("pid", child_pid(r->child)),
             LS("role", l->role), LS("incarnation", incarnation), LI("epoch", l->epoch));
}

static int new_segment(struct launch *l, struct err *e)
{
    close_fdp(&l->segment_fd);
    if (l->n_ranks == 1)
        return 0;
    l->segment_fd = memfd_create("baton-comm", MFD_CLOEXEC);
    return l->segment_fd < 0
               ? err_set(e, errno, "no memory for the ranks to share: %s", strerror(errno))
               : 0;
}

int ranks_start(struct launch *l, struct err *e)
{
    char text[24];
    l->incarnation = rng_secret_u64();
    l->started_ns = clock_mono_ns();
    l->ready_ns = 0;
    free(l->end_why);
    free(l->end_reason);
    l->end_why = l->end_reason = NULL;
    l->end_signal = 0;
    snprintf(text, sizeof text, "%016llx", (unsigned long long)l->incarnation);
    int rc = new_segment(l, e);
    for (uint32_t i = 0; !rc && i < l->n_ranks; i++)
        if ((rc = spawn(l, &l->ranks[i], e)) == 0)
            l->alive++;
    for (uint32_t i = 0; rc && i < l->n_ranks; i++)
        if (l->ranks[i].child) {
            child_abandon(l->ranks[i].child);
            l->ranks[i].child = NULL;
            l->alive--;
        }
    for (uint32_t i = 0; !rc && i < l->n_ranks; i++)
        send_start(l, &l->ranks[i], text);
    return rc;
}
