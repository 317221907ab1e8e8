#include "agent/lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define OUT_MAX (512 << 10)
#define FDS_MAX 16

struct out_line {
    struct out_line *next;
    char *text;
    size_t n, at;
    int fd; /* -1: none, or sent */
};

struct lines {
    uv_poll_t poll;
    int fd;
    struct lines_handlers h;
    struct buf in;
    int fds[FDS_MAX];
    size_t n_fds, out_bytes;
    struct out_line *out;
    bool closed, in_callback;
};

static void freed(uv_handle_t *h)
{
    struct lines *l = h->data;
    close(l->fd);
    for (size_t i = 0; i < l->n_fds; i++)
        close(l->fds[i]);
    while (l->out) {
        struct out_line *o = l->out;
        l->out = o->next;
        if (o->fd >= 0)
            close(o->fd);
        free(o->text);
        free(o);
    }
    buf_fini(&l->in);
    free(l);
}

void lines_close(struct lines *l)
{
    if (l->closed)
        return;
    l->closed = true;
    uv_poll_stop(&l->poll);
    uv_close((uv_handle_t *)&l->poll, freed);
}

static void fail(struct lines *l, const char *why)
{
    if (l->closed)
        return;
    if (l->h.on_closed)
        l->h.on_closed(l, why, l->h.ctx);
    lines_close(l);
}

int lines_take_fd(struct lines *l)
{
    if (l->n_fds == 0)
        return -1;
    int fd = l->fds[0];
    memmove(l->fds, l->fds + 1, --l->n_fds * sizeof *l->fds);
    return fd;
}

static bool keep_fds(struct lines *l, struct msghdr *m)
{
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            if (l->n_fds == FDS_MAX) {
                close(fd);
                return false;
            }
            l->fds[l->n_fds++] = fd;
        }
    }
    return (m->msg_flags & MSG_CTRUNC) == 0;
}

/* Hands out whole lines; false when the connection is over. */
static bool split(struct lines *l)
{
    char *nl;
    while (!l->closed && l->in.n && (nl = memchr(l->in.data, '\n', l->in.n))) {
        size_t n = (size_t)(nl - l->in.data);
        CLEANUP(json_decrefp)
        json_t *msg = json_parse((struct str){l->in.data, n}, LINES_MAX_BYTES, 0, NULL);
        buf_consume(&l->in, n + 1);
        if (!json_is_object(msg)) {
            fail(l, "a line is not a JSON object");
            return false;
        }
        l->h.on_message(l, msg, l->h.ctx);
    }
    if (!l->closed && l->in.n >= LINES_MAX_BYTES)
        fail(l, "a line is longer than 64 KiB");
    return !l->closed;
}

static void receive(struct lines *l)
{
    char piece[16384];
    union {
        char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
        struct cmsghdr align;
    } control;
    for (int round = 0; round < 16; round++) {
        struct iovec v = {piece, sizeof piece};
        struct msghdr m = {.msg_iov = &v,
                           .msg_iovlen = 1,
                           .msg_control = control.room,
                           .msg_controllen = sizeof control.room};
        ssize_t n = recvmsg(l->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) {
            fail(l, n == 0 ? "the other side closed the connection" : strerror(errno));
            return;
        }
        if (!keep_fds(l, &m) || buf_append(&l->in, piece, (size_t)n)) {
            fail(l, "too much was sent at once");
            return;
        }
        if (!split(l))
            return;
    }
}

static int send_some(struct lines *l, struct out_line *o)
{
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec v = {o->text + o->at, o->n - o->at};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    if (o->fd >= 0) {
        memset(&control, 0, sizeof control);
        m.msg_control = control.room;
        m.msg_controllen = sizeof control.room;
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &o->fd, sizeof o->fd);
    }
    ssize_t n = sendmsg(l->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0)
        return errno == EINTR ? 0 : -errno;
    if (o->fd >= 0)
        close(o->fd);
    o->fd = -1;
    o->at += (size_t)n;
    return 0;
}

static void on_poll(uv_poll_t *p, int status, int events);

static int flush(struct lines *l)
{
    int r = 0;
    while (l->out && (r = send_some(l, l->out)) == 0) {
        struct out_line *o = l->out;
        if (o->at < o->n)
            continue;
        l->out = o->next;
        l->out_bytes -= o->n;
        free(o->text);
        free(o);
    }
    if (r == -EAGAIN || r == -EWOULDBLOCK)
        r = 0;
    uv_poll_start(&l->poll, l->out ? UV_READABLE | UV_WRITABLE : UV_READABLE, on_poll);
    return r;
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    struct lines *l = p->data;
    if (status < 0) {
        fail(l, uv_strerror(status));
        return;
    }
    if (events & UV_READABLE)
        receive(l);
    if (!l->closed && (events & UV_WRITABLE) && flush(l))
        fail(l, "the other side is gone");
}

int lines_new(uv_loop_t *loop, int fd, const struct lines_handlers *h, struct lines **out,
              struct err *e)
{
    struct lines *l = xcalloc(1, sizeof *l);
    l->fd = fd;
    l->h = *h;
    buf_init(&l->in, LINES_MAX_BYTES + 32768);
    int r = uv_poll_init(loop, &l->poll, fd);
    if (r) {
        free(l);
        return err_set(e, -r, "can't watch a socket: %s", uv_strerror(r));
    }
    l->poll.data = l;
    r = uv_poll_start(&l->poll, UV_READABLE, on_poll);
    if (r)
        return err_set(e, -r, "can't watch a socket: %s", uv_strerror(r));
    *out = l;
    return 0;
}

int lines_send(struct lines *l, const json_t *msg, int fd)
{
    struct buf b;
    if (l->closed)
        return -EPIPE;
    buf_init(&b, LINES_MAX_BYTES);
    if (json_write(msg, false, &b) || buf_cstr(&b, "\n") || l->out_bytes + b.n > OUT_MAX) {
        buf_fini(&b);
        return -EMSGSIZE;
    }
    struct out_line *o = xcalloc(1, sizeof *o), **end = &l->out;
    *o = (struct out_line){.n = b.n, .fd = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1};
    o->text = buf_take(&b);
    while (*end)
        end = &(*end)->next;
    *end = o;
    l->out_bytes += o->n;
    return flush(l) ? -EPIPE : 0;
}

static int address(const char *dir, const char *name, struct sockaddr_un *a, int *dirfd,
                   struct err *e)
{
    *dirfd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (*dirfd < 0)
        return err_set(e, errno, "can't open the folder %s: %s", dir, strerror(errno));
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d/%s", *dirfd, name);
    return 0;
}

static int unix_socket(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

int lines_connect(const char *dir, const char *name, struct err *e)
{
    struct sockaddr_un a;
    CLEANUP(close_fdp) int dirfd = -1;
    int r = address(dir, name, &a, &dirfd, e);
    if (r)
        return r;
    CLEANUP(close_fdp) int fd = unix_socket();
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
        return err_set(e, errno, "can't connect to %s/%s: %s", dir, name, strerror(errno));
    int out = fd;
    fd = -1;
    return out;
}

int lines_listen(const char *dir, const char *name, struct err *e)
{
    struct sockaddr_un a;
    CLEANUP(close_fdp) int dirfd = -1;
    int r = address(dir, name, &a, &dirfd, e);
    if (r)
        return r;
    int other = lines_connect(dir, name, NULL);
    if (other >= 0) {
        close(other);
        return err_set(e, EADDRINUSE, "another agent already serves %s/%s", dir, name);
    }
    /* bound under another name and renamed: who connects finds a listening socket or none */
    CLEANUP(free_charp) char *fresh = xasprintf("%s.%d", name, (int)getpid());
    struct sockaddr_un b = a;
    snprintf(b.sun_path, sizeof b.sun_path, "/proc/self/fd/%d/%s", dirfd, fresh);
    unlinkat(dirfd, fresh, 0);
    CLEANUP(close_fdp) int fd = unix_socket();
    if (fd < 0 || bind(fd, (struct sockaddr *)&b, sizeof b) || fchmodat(dirfd, fresh, 0660, 0) ||
        listen(fd, 128) || renameat(dirfd, fresh, dirfd, name))
        return err_set(e, errno, "can't listen at %s/%s: %s", dir, name, strerror(errno));
    int out = fd;
    fd = -1;
    return out;
}
