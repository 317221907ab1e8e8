#include "worker/launcher.h"

#include "lib/base/log.h"
#include "lib/json/json.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINE_MAX_BYTES 65536

struct launcher {
    int fd, passed_fd; /* the last descriptor that came, -1 when taken */
    struct buf in, out;
    uv_poll_t poll;
    bool watching, lost;
    struct launcher_callbacks cb;
};

struct launcher *launcher_new(int fd)
{
    struct launcher *l = xcalloc(1, sizeof *l);
    l->fd = fd;
    l->passed_fd = -1;
    buf_init(&l->in, 2 * LINE_MAX_BYTES);
    buf_init(&l->out, 16 * LINE_MAX_BYTES);
    return l;
}

static void closed(uv_handle_t *h)
{
    struct launcher *l = h->data;
    close_fdp(&l->fd);
    close_fdp(&l->passed_fd);
    buf_fini(&l->in);
    buf_fini(&l->out);
    free(l);
}

void launcher_free(struct launcher *l)
{
    if (!l)
        return;
    if (l->watching) {
        uv_poll_stop(&l->poll);
        uv_close((uv_handle_t *)&l->poll, closed);
        return;
    }
    l->poll.data = l;
    closed((uv_handle_t *)&l->poll);
}

/* Bytes read, 0 at the end, -EAGAIN; a descriptor that comes along is kept. */
static ssize_t receive(struct launcher *l, int flags)
{
    char data[4096], control[CMSG_SPACE(4 * sizeof(int))];
    struct iovec v = {data, sizeof data};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t n;
    do
        n = recvmsg(l->fd, &m, flags | MSG_CMSG_CLOEXEC);
    while (n < 0 && errno == EINTR);
    if (n <= 0)
        return n < 0 ? -errno : 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < fds; i++) {
            close_fdp(&l->passed_fd);
            memcpy(&l->passed_fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
        }
    }
    return buf_append(&l->in, data, (size_t)n) ? -EMSGSIZE : n;
}

/* The next whole line as a new JSON object; NULL when there is none. */
static json_t *next_line(struct launcher *l)
{
    struct err e = {0};
    const char *nl = l->in.n ? memchr(l->in.data, '\n', l->in.n) : NULL;
    if (!nl)
        return NULL;
    size_t n = (size_t)(nl - l->in.data);
    json_t *o = json_parse((struct str){l->in.data, n}, LINE_MAX_BYTES, 0, &e);
    if (!o) {
        log_warn("a line from the launcher is no JSON", LERR(&e));
        o = json_object();
    }
    buf_consume(&l->in, n + 1);
    return o;
}

static uint32_t count_at(const json_t *o, const char *key)
{
    int64_t n = json_int_at(o, key, 1);
    return n >= 0 && n <= 1024 ? (uint32_t)n : 0;
}

/* Which rank of what: absent, the only one. */
static int take_layout(const json_t *o, struct launcher_start *s, struct err *e)
{
    size_t i;
    json_t *peer;
    int64_t rank = json_int_at(o, "rank", 0);
    s->ranks = count_at(o, "ranks");
    s->ranks_per_pod =
        json_object_get(o, "ranks_per_pod") ? count_at(o, "ranks_per_pod") : s->ranks;
    s->tensor = count_at(o, "tensor");
    s->pipeline = count_at(o, "pipeline");
    s->expert = count_at(o, "expert");
    s->data = count_at(o, "data");
    s->epoch = (uint64_t)json_int_at(o, "epoch", 0);
    if (!s->ranks || !s->ranks_per_pod || rank < 0 || rank >= s->ranks)
        return err_set(e, EINVAL, "the start message has no rank of its group");
    s->rank = (uint32_t)rank;
    json_array_foreach (json_object_get(o, "peers"), i, peer) {
        if (i == LAUNCHER_PEERS_MAX)
            return err_set(e, EINVAL, "the start message has too many peers");
        snprintf(s->peers[i], sizeof s->peers[i], "%s",
                 json_string_value(peer) ? json_string_value(peer) : "");
        s->n_peers++;
    }
    return 0;
}

static int take_start(struct launcher *l, const json_t *o, struct launcher_start *out,
                      struct err *e)
{
    const char *hex = json_str_at(o, "incarnation", "");
    struct launcher_start s = {.role = wire_role_parse(json_str_at(o, "role", "standby")),
                               .weights_bytes = (uint64_t)json_int_at(o, "weights_bytes", 0)};
    char *end;
    s.incarnation = strtoull(hex, &end, 16);
    if (strlen(hex) != 16 || *end || !s.incarnation)
        return err_set(e, EINVAL, "the start message has no incarnation of 16 hex digits");
    if (take_layout(o, &s, e))
        return -EINVAL;
    if (l->passed_fd < 0)
        return err_set(e, EINVAL, "the start message came without the weights");
    if (s.role == WIRE_ROLE_NONE)
        s.role = WIRE_ROLE_STANDBY;
    s.weights_fd = l->passed_fd;
    l->passed_fd = -1;
    *out = s;
    return 0;
}

int launcher_wait(struct launcher *l, struct launcher_start *out, struct err *e)
{
    for (;;) {
        CLEANUP(json_decrefp) json_t *o = next_line(l);
        if (o && strcmp(json_str_at(o, "type", ""), "start") == 0)
            return take_start(l, o, out, e);
        if (o)
            continue;
        ssize_t n = receive(l, 0);
        if (n <= 0)
            return err_set(e, EPIPE, "the launcher left before it started this worker");
    }
}

static void flush(struct launcher *l)
{
    while (l->out.n) {
        ssize_t n = send(l->fd, l->out.data, l->out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            break;
        buf_consume(&l->out, (size_t)n);
    }
}

static void handle(struct launcher *l, const json_t *o)
{
    const char *type = json_str_at(o, "type", "");
    enum wire_role role = wire_role_parse(json_str_at(o, "role", ""));
    if (strcmp(type, "role") == 0 && role != WIRE_ROLE_NONE)
        l->cb.role(role, l->cb.ctx);
    else if (strcmp(type, "rung") == 0)
        l->cb.rung(strcmp(json_str_at(o, "rung", "hot"), "warm") == 0, l->cb.ctx);
    else if (strcmp(type, "drain") == 0)
        l->cb.drain(l->cb.ctx);
    else
        log_warn("the launcher sent something unknown", LS("type", type));
}

static void on_readable(uv_poll_t *p, int status, int events)
{
    struct launcher *l = p->data;
    (void)status;
    (void)events;
    ssize_t n = receive(l, MSG_DONTWAIT);
    if (n == -EAGAIN)
        return;
    for (;;) {
        CLEANUP(json_decrefp) json_t *o = next_line(l);
        if (!o)
            break;
        handle(l, o);
    }
    flush(l);
    if (n <= 0 && !l->lost) {
        l->lost = true;
        uv_poll_stop(&l->poll);
        l->cb.lost(l->cb.ctx);
    }
}

int launcher_watch(struct launcher *l, uv_loop_t *loop, const struct launcher_callbacks *cb,
                   struct err *e)
{
    int rc = uv_poll_init(loop, &l->poll, l->fd);
    l->poll.data = l;
    l->cb = *cb;
    if (rc == 0) {
        l->watching = true;
        rc = uv_poll_start(&l->poll, UV_READABLE, on_readable);
    }
    return rc ? err_set(e, -rc, "can't watch the launcher's socket: %s", uv_strerror(rc)) : 0;
}

void launcher_status(struct launcher *l, const struct launcher_state *s)
{
    const char *comma = "";
    int rc = buf_printf(&l->out,
                        "{\"type\":\"status\",\"role\":\"%s\",\"ready\":%s,\"draining\":%s,"
                        "\"rung\":\"%s\",\"running\":%u,\"maskable\":%s,\"masked\":[",
                        wire_role_name(s->role), s->ready ? "true" : "false",
                        s->draining ? "true" : "false", s->asleep ? "warm" : "hot", s->running,
                        s->maskable ? "true" : "false");
    for (uint32_t r = 0; !rc && r < 64; r++)
        if (s->masked >> r & 1) {
            rc = buf_printf(&l->out, "%s%u", comma, r);
            comma = ",";
        }
    rc = rc ? rc : buf_cstr(&l->out, "]}\n");
    if (rc)
        log_warn("the launcher does not read its messages");
    flush(l);
}

void launcher_drained(struct launcher *l)
{
    int rc = buf_cstr(&l->out, "{\"type\":\"drained\"}\n");
    if (rc)
        log_warn("the launcher does not read its messages");
    flush(l);
}
