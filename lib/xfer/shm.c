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
    if (x->cfg.pool.fd < 0)
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
    uint8_t body[16], frame[CONTROL_HEADER_BYTES + 16];
    le_put64(body, x->cfg.pool.len);
    le_put64(body + 8, x->cfg.pool.fd_off);
    control_frame_header(frame, CONTROL_WELCOME, body, sizeof body);
    memcpy(frame + CONTROL_HEADER_BYTES, body, sizeof body);
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } u = {0};
    struct iovec iov = {frame, sizeof frame};
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = sizeof u};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &x->cfg.pool.fd, sizeof(int));
    /* From here on P may write: the link is not over before this connection is. */
    out->pair = c;
    c->pair = out;
    if (sendmsg(c->fd, &m, MSG_NOSIGNAL) != (ssize_t)sizeof frame)
        conn_die(c, XFER_PEER_LOST, "the pool could not be handed over");
}

static int map(struct conn *c, const struct control_frame *f)
{
    const struct control_hello *d = &c->pair->hello;
    uint64_t len = le_get64(f->body), off = le_get64(f->body + 8);
    struct stat st;
    if (f->n != 16 || c->got_fd < 0 || fstat(c->got_fd, &st) || len > (uint64_t)st.st_size ||
        off > (uint64_t)st.st_size - len || d->block_bytes * d->n_blocks > len)
        return -EINVAL;
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, c->got_fd, (off_t)off);
    if (p == MAP_FAILED)
        return -errno;
    (void)madvise(p, len, MADV_HUGEPAGE);
    c->map = p;
    c->map_len = len;
    close_fdp(&c->got_fd);
    return 0;
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
