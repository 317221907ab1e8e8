/* agent.sock: the launchers of this node's pods. Messages: docs/contracts.md. */
#include "agent/models.h"
#include "lib/decide/standby.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

struct launcher *sock_launcher(struct agent *a, const char *uid)
{
    struct launcher *l, *found = NULL;
    DL_FOREACH (a->launchers, l) {
        if (l->uid && strcmp(l->uid, uid) == 0)
            found = l;
    }
    return found;
}

static void tell(struct launcher *l, json_t *msg, int fd)
{
    int r = lines_send(l->lines, msg, fd);
    if (r)
        log_warn("a launcher does not listen", LS("pod", l->pod), LI("code", r));
    json_decref(msg);
}

static int64_t annotation_int(const struct apod *p, const char *key)
{
    const char *text =
        json_string_value(json_object_get(json_at(p->obj, "metadata.annotations"), key));
    int64_t v;
    return text && str_to_i64(str_c(text), 0, INT64_MAX, &v) == 0 ? v : -1;
}

/* The epoch that a worker started now has: this pod's workers so far are counted in the annotation.
 */
static int64_t next_epoch(const struct apod *p)
{
    int64_t epoch = annotation_int(p, ANN_EPOCH);
    bool ran = json_object_get(json_at(p->obj, "metadata.annotations"), ANN_INCARNATION) != NULL;
    return epoch < 0 ? 0 : epoch + (ran ? 1 : 0);
}

static void tell_rung(struct launcher *l, const struct apod *p, const char *role)
{
    const char *noted =
        json_string_value(json_object_get(json_at(p->obj, "metadata.annotations"), ANN_RUNG));
    const char *rung = standby_told(role, noted);
    if (l->sent_rung && strcmp(l->sent_rung, rung) == 0)
        return;
    tell(l, json_pack("{s:s, s:s}", "type", "rung", "rung", rung), -1);
    free(l->sent_rung);
    l->sent_rung = xstrdup(rung);
}

/* The start barrier of a group of several pods: who they are and the epoch to run at. */
static void tell_group(struct launcher *l, const struct apod *p)
{
    const json_t *notes = json_at(p->obj, "metadata.annotations");
    const char *peers = json_string_value(json_object_get(notes, ANN_PEERS));
    const char *epoch = json_string_value(json_object_get(notes, ANN_EPOCH));
    const json_t *labels = json_at(p->obj, "metadata.labels");
    const char *index = json_string_value(json_object_get(labels, LABEL_INDEX));
    uint64_t n, k;
    if (!peers || !epoch || !index || str_to_u64(str_c(epoch), 0, UINT32_MAX, &n) ||
        str_to_u64(str_c(index), 0, 4096, &k))
        return;
    CLEANUP(free_charp) char *now = xasprintf("%s %s", epoch, peers);
    if (l->sent_group && strcmp(l->sent_group, now) == 0)
        return;
    json_t *list = json_parse(str_c(peers), 65536, 0, NULL);
    if (!json_is_array(list)) {
        log_warn("a pod's list of peers is not a JSON array", LS("pod", p->name));
        json_decref(list);
        return;
    }
    tell(l,
         json_pack("{s:s, s:I, s:I, s:o}", "type", "group", "epoch", (json_int_t)n, "index",
                   (json_int_t)k, "peers", list),
         -1);
    free(l->sent_group);
    l->sent_group = xstrdup(now);
}

void sock_tell(struct launcher *l, const struct apod *p)
{
    const char *role = pods_role(p);
    if (role)
        tell_rung(l, p, role);
    if (role && (!l->sent_role || strcmp(l->sent_role, role) != 0)) {
        tell(l,
             json_pack("{s:s, s:s, s:I}", "type", "role", "role", role, "epoch",
                       (json_int_t)next_epoch(p)),
             -1);
        free(l->sent_role);
        l->sent_role = xstrdup(role);
    }
    if (pods_grouped(p))
        tell_group(l, p);
    if (json_at(p->obj, "metadata.deletionTimestamp") && !l->sent_drain) {
        tell(l, json_pack("{s:s}", "type", "drain"), -1);
        l->sent_drain = true;
    }
}

static void drop_request(struct launcher *l)
{
    free((char *)(uintptr_t)l->want.source);
    free((char *)(uintptr_t)l->want.sha256);
    free((char *)(uintptr_t)l->want.isa);
    free((char *)(uintptr_t)l->want.layout);
    l->want = (struct weights_key){0};
    l->waits = false;
}

/* Each rank of a launcher's pod uses an image of its own. */
static const void *user_of(const struct launcher *l, int64_t rank)
{
    return (const char *)l + rank % LAUNCHER_RANKS;
}

static void answer_weights(struct launcher *l)
{
    struct err e = {0};
    enum weights_state state;
    int fd = -1;
    int r = weights_get(l->a->weights, user_of(l, l->want.rank), &l->want, l->want_bytes, &state,
                        &fd, &e);
    if (r) {
        log_warn("weights refused", LS("pod", l->pod), LERR(&e));
        tell(l, json_pack("{s:s, s:s, s:s}", "type", "weights", "state", "error", "message", e.msg),
             -1);
        drop_request(l);
        return;
    }
    static const char *const names[] = {"fill", "ready", "wait"};
    l->waits = state == WEIGHTS_WAIT;
    tell(l, json_pack("{s:s, s:s}", "type", "weights", "state", names[state]), fd);
    close_fdp(&fd);
}

/* An image is complete, or its filler is gone: those who wait are next. */
static void answer_waiting(struct agent *a)
{
    struct launcher *l;
    DL_FOREACH (a->launchers, l) {
        if (l->waits)
            answer_weights(l);
    }
}

static void on_hello(struct launcher *l, const json_t *msg)
{
    free(l->ns);
    free(l->pod);
    free(l->uid);
    l->ns = xstrdup(json_str_at(msg, "namespace", ""));
    l->pod = xstrdup(json_str_at(msg, "pod", ""));
    l->uid = xstrdup(json_str_at(msg, "uid", ""));
    l->pid = json_int_at(msg, "pid", 0);
    free(l->devices);
    l->devices = *json_str_at(msg, "devices", "") ? xstrdup(json_str_at(msg, "devices", "")) : NULL;
    log_info("launcher connected", LS("pod", l->pod), LI("pid", l->pid));
    struct apod *p = pods_find(l->a, l->uid);
    if (p)
        sock_tell(l, p);
}

static void on_weights(struct launcher *l, const json_t *msg)
{
    int64_t bytes = json_int_at(msg, "bytes", 0);
    const char *source = json_str_at(msg, "source", "");
    drop_request(l);
    if (bytes <= 0 || !*source) {
        tell(l,
             json_pack("{s:s, s:s, s:s}", "type", "weights", "state", "error", "message",
                       "a weights request needs source and bytes"),
             -1);
        return;
    }
    l->want = (struct weights_key){.source = xstrdup(source),
                                   .sha256 = xstrdup(json_str_at(msg, "sha256", "")),
                                   .isa = xstrdup(json_str_at(msg, "isa", "")),
                                   .layout = xstrdup(json_str_at(msg, "layout", "")),
                                   .rank = json_int_at(msg, "rank", 0)};
    if (l->want.rank < 0)
        l->want.rank = 0;
    l->want_bytes = (uint64_t)bytes;
    if (json_bool_at(msg, "hold", false))
        weights_hold(l->a->weights, user_of(l, l->want.rank), &l->want);
    else
        answer_weights(l);
}

static void on_filled(struct launcher *l, const json_t *msg)
{
    struct err e = {0};
    if (weights_filled(l->a->weights, user_of(l, l->want.rank), json_str_at(msg, "checksum", ""),
                       &e)) {
        log_warn("a fill was not expected", LS("pod", l->pod), LERR(&e));
        return;
    }
    answer_weights(l); /* the filler's own, read-only now */
    answer_waiting(l->a);
    inventory_poke(l->a);
}

static void on_status(struct launcher *l, const json_t *msg)
{
    json_decref(l->status);
    l->status = json_deep_copy(msg);
    struct apod *p = l->uid ? pods_find(l->a, l->uid) : NULL;
    if (!p)
        return;
    json_decref(p->reported);
    p->reported = json_incref(l->status);
    pods_poke(p);
}

static void on_message(struct lines *lines, const json_t *msg, void *ctx)
{
    (void)lines;
    struct launcher *l = ctx;
    const char *type = json_str_at(msg, "type", "");
    if (strcmp(type, "hello") == 0)
        on_hello(l, msg);
    else if (!l->uid)
        log_warn("a launcher spoke before its hello", LS("type", type));
    else if (strcmp(type, "weights") == 0)
        on_weights(l, msg);
    else if (strcmp(type, "model") == 0)
        models_ask(l, msg);
    else if (strcmp(type, "filled") == 0)
        on_filled(l, msg);
    else if (strcmp(type, "status") == 0)
        on_status(l, msg);
    else
        log_warn("unknown message from a launcher", LS("type", type));
}

static void on_closed(struct lines *lines, const char *why, void *ctx)
{
    (void)lines;
    struct launcher *l = ctx;
    struct agent *a = l->a;
    DL_DELETE(a->launchers, l);
    log_info("launcher gone", LS("pod", l->pod), LS("why", why));
    for (int64_t r = 0; r < LAUNCHER_RANKS; r++)
        weights_release(a->weights, user_of(l, r));
    models_release(l);
    struct apod *p = l->uid ? pods_find(a, l->uid) : NULL;
    drop_request(l);
    json_decref(l->status);
    free(l->sent_role);
    free(l->sent_rung);
    free(l->sent_group);
    free(l->devices);
    free(l->ns);
    free(l->pod);
    free(l->uid);
    free(l);
    answer_waiting(a);
    if (p && !sock_launcher(a, p->uid)) {
        json_decref(p->reported);
        p->reported = NULL;
        pods_poke(p);
    }
    inventory_poke(a);
}

static void on_connection(uv_poll_t *h, int status, int events)
{
    (void)status, (void)events;
    struct agent *a = h->data;
    uv_os_fd_t listening;
    if (uv_fileno((uv_handle_t *)h, &listening))
        return;
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct launcher *l = xcalloc(1, sizeof *l);
    struct lines_handlers handlers = {.on_message = on_message, .on_closed = on_closed, .ctx = l};
    struct err e;
    l->a = a;
    if (lines_new(&a->loop, fd, &handlers, &l->lines, &e)) {
        log_warn("a launcher could not be served", LERR(&e));
        close(fd);
        free(l);
        return;
    }
    DL_APPEND(a->launchers, l);
}

int sock_start(struct agent *a, struct err *e)
{
    int fd = lines_listen(a->opt.agent_dir, "agent.sock", e);
    if (fd < 0)
        return fd;
    a->listener = xcalloc(1, sizeof *a->listener);
    a->listener->data = a;
    int r = uv_poll_init(&a->loop, a->listener, fd);
    if (!r)
        r = uv_poll_start(a->listener, UV_READABLE, on_connection);
    return r ? err_set(e, -r, "can't watch agent.sock: %s", uv_strerror(r)) : 0;
}
