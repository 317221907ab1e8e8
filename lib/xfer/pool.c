#include "lib/xfer/xfer.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

/* All of it now, so that this process's cgroup pays: by touching, which can get huge pages where
 * the host allows them to shared memory; else by fallocate. */
static int fill(int fd, void *base, size_t len, struct err *e)
{
    (void)madvise(base, len, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    if (madvise(base, len, MADV_POPULATE_WRITE) == 0)
        return 0;
#endif
    if (fallocate(fd, 0, 0, (off_t)len) == 0)
        return 0;
    return err_set(e, errno,
                   "KV pool of %zu bytes: %s; lower BATON_KV_BYTES or raise the memory limit", len,
                   strerror(errno));
}

int xfer_pool_new(struct xfer_pool *p, size_t len, struct err *e)
{
    int fd = memfd_create("baton-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_set(e, errno, "memfd_create: %s", strerror(errno));
    int rc = 0;
    void *base = MAP_FAILED;
    if (ftruncate(fd, (off_t)len))
        rc = err_set(e, errno,
                     "KV pool of %zu bytes: %s; lower BATON_KV_BYTES or raise the memory limit",
                     len, strerror(errno));
    else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        rc = err_set(e, errno, "sealing the KV pool: %s", strerror(errno));
    else if ((base = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        rc = err_set(e, errno, "mapping the KV pool of %zu bytes: %s", len, strerror(errno));
    else
        rc = fill(fd, base, len, e);
    if (rc) {
        if (base != MAP_FAILED)
            munmap(base, len);
        close(fd);
        return rc;
    }
    *p = (struct xfer_pool){.base = base, .len = len, .fd = fd};
    return 0;
}

int xfer_pool_release(struct xfer_pool *p, struct err *e)
{
    if (fallocate(p->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)p->len))
        return err_set(e, errno, "giving back the KV pool's memory: %s", strerror(errno));
    return 0;
}

int xfer_pool_refill(struct xfer_pool *p, struct err *e)
{
    return fill(p->fd, p->base, p->len, e);
}

void xfer_pool_free(struct xfer_pool *p)
{
    if (p->base)
        munmap(p->base, p->len);
    if (p->fd >= 0)
        close(p->fd);
    *p = (struct xfer_pool){.fd = -1};
}
