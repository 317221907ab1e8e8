#include "lib/xfer/conn.h"

#include "lib/base/log.h"
#include "lib/wire/le.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <utlist.h>

#define NAME_FMT "xfer-%016llx.sock"

/* Through the directory's fd: a socket address holds 108 bytes, a volume's path may be longer. */
static socklen_t address(const struct xfer *x, uint64_t incarnation, struct sockaddr_un *a)
{
    *a = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(a->sun_path, sizeof a->sun_path, "/proc/self/fd/%d/" NAME_FMT, x->shm_dir_fd,
             (unsigned long long)incarnation);
    return sizeof *a;
}

static int stream(void)
{
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Sockets that killed workers left behind: nobody listens any more. */
static void sweep(struct xfer *x)
{
    int fd = openat(x->shm_dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d) {
        close_fdp(&fd);
        return;
    }
    const struct dirent *de;
    for (int seen = 0; seen < 4096 && (de = readdir(d)); seen++) {
        unsigned long long inc;
        int end = 0;
        if (sscanf(de->d_name, "xfer-%16llx.sock%n", &inc, &end) != 1 || !end || de->d_name[end])
            continue;
        struct sockaddr_un a;
        socklen_t n = address(x, inc, &a);
        CLEANUP(close_fdp) int s = stream();
        if (s >= 0 && connect(s, (struct sockaddr *)&a, n) && errno == ECONNREFUSED)
            unlinkat(x->shm_dir_fd, de->d_name, 0);
    }
    closedir(d);
}

int shm_listen(struct xfer *x, struct err *e)
{
    x->shm_dir_fd = open(x->shm_dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (x->shm_dir_fd < 0)
        return err_set(e, errno, "shared directory %s: %s", x->shm_dir, strerror(errno));
    for (uint32_t i = 0; i < x->pool.n; i++)
        if (x->pool.s[i].pool.fd < 0)
            return 0;
    sweep(x);
    struct sockaddr_un a;
    socklen_t n = address(x, x->cfg.incarnation, &a);
    x->shm_listener = stream();
    if (x->shm_listener < 0 || bind(x->shm_listener, (struct sockaddr *)&a, n) ||
        listen(x->shm_listener, 64))
        return err_set(e, errno, "socket in %s: %s", x->shm_dir, strerror(errno));
    return 0;
}

void shm_unlisten(struct xfer *x)
{
    if (x->shm_listener >= 0) {
        char name[64];
        snprintf(name, sizeof name, NAME_FMT, (unsigned long long)x->cfg.incarnation);
        unlinkat(x->shm_dir_fd, name, 0);
    }
    close_fdp(&x->shm_listener);
    close_fdp(&x->shm_dir_fd);
}

struct conn *shm_connect(struct conn *in, uint64_t now_ns)
{
    struct xfer *x = in->x;
    if (x->shm_dir_fd < 0)
        return NULL;
    CLEANUP(close_fdp) int fd = stream();
    if (fd < 0)
        return NULL;
    struct sockaddr_un a;
    socklen_t n = address(x, in->hello.from, &a);
    struct conn *c = conn_new(x, CONN_SHM_OUT, fd, now_ns);
    fd = -1;
    memcpy(&c->addr, &a, n);
    c->addr_len = n;
    c->hello.from = x->cfg.incarnation;
    c->hello.to = in->hello.from;
    c->hello.session = in->hello.session;
    if (greet_connect(c)) {
        conn_free(c);
        return NULL;
    }
    c->pair = in;
    return c;
}

void shm_give(struct conn *c)
{
    struct xfer *x = c->x;
    struct conn *out = NULL, *o;
    DL_FOREACH (x->conns, o) {
        if (o->kind == CONN_OUT && !o->dead && o->link && o->hello.session == c->hello.session &&
            o->hello.to == c->hello.from)
            out = o;
    }
    if (!out || out->pair) {
        conn_die(c, XFER_WRONG_PEER, "no such session");
        return;
    }
    uint8_t body[SLICES_BODY_MAX], frame[CONTROL_HEADER_BYTES + SLICES_BODY_MAX];
    uint32_t body_n = (uint32_t)slices_encode(&x->pool, body), n = x->pool.n;
    control_frame_header(frame, CONTROL_WELCOME, body, body_n);
    memcpy(frame + CONTROL_HEADER_BYTES, body, body_n);
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(XFER_SLICES_MAX * sizeof(int))];
    } u = {0};
    struct iovec iov = {frame, CONTROL_HEADER_BYTES + body_n};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = &u,
                       .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(n * sizeof(int));
    for (uint32_t i = 0; i < n; i++)
        memcpy(CMSG_DATA(h) + i * sizeof(int), &x->pool.s[i].pool.fd, sizeof(int));
    /* From here on P may write: the link is not over before this connection is. */
    out->pair = c;
    c->pair = out;
    if (sendmsg(c->fd, &m, MSG_NOSIGNAL) != (ssize_t)iov.iov_len)
        conn_die(c, XFER_PEER_LOST, "the pool could not be handed over");
}

static int map(struct conn *c, const struct control_frame *f)
{
    const struct control_hello *d = &c->pair->hello;
    int rc = slices_map(&c->map, f->body, f->n, c->got_fds, c->n_got, d->n_blocks, d->n_layers,
                        c->x->cfg.piece_bytes);
    c->n_got = 0;
    return rc;
}

void shm_welcome(struct conn *c, const struct control_frame *f)
{
    if (!c->pair || f->type != CONTROL_WELCOME || map(c, f)) {
        conn_die(c, XFER_PEER_LOST, "the pool that was handed over can't be mapped");
        return;
    }
    c->state = CONN_OPEN;
    c->deadline_ns = 0;
    push_path(c->pair, XFER_PATH_SHM);
}
