#include "local/kubelet_proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static ssize_t read_small(const char *path, char *out, size_t cap)
{
    CLEANUP(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t n = 0;
    while (n + 1 < cap) {
        ssize_t r = read(fd, out + n, cap - 1 - n);
        if (r < 0)
            return -errno;
        if (r == 0)
            break;
        n += (size_t)r;
    }
    out[n] = 0;
    return (ssize_t)n;
}

/* The command in /proc/<pid>/stat may hold spaces and brackets: fields count from the last ')'. */
int proc_start_time(pid_t pid, uint64_t *out)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_small(path, text, sizeof text) <= 0)
        return -ESRCH;
    char *p = strrchr(text, ')');
    if (!p || p[1] != ' ' || p[2] == 'Z' || p[2] == 'X')
        return -ESRCH;
    p += 2;
    for (int field = 3; field < 22; field++) {
        p = strchr(p, ' ');
        if (!p)
            return -ESRCH;
        p++;
    }
    *out = strtoull(p, NULL, 10);
    return 0;
}

bool proc_alive(struct proc_id id)
{
    uint64_t start;
    return id.pid > 0 && proc_start_time(id.pid, &start) == 0 && start == id.start;
}

int proc_open(struct proc_id id)
{
    if (id.pid <= 0)
        return -ESRCH;
    int fd = (int)syscall(SYS_pidfd_open, id.pid, 0);
    if (fd < 0)
        return -ESRCH;
    if (!proc_alive(id)) {
        close(fd);
        return -ESRCH;
    }
    return fd;
}

int proc_signal(struct proc_id id, int sig)
{
    CLEANUP(close_fdp) int fd = proc_open(id);
    if (fd < 0)
        return -ESRCH;
    return syscall(SYS_pidfd_send_signal, fd, sig, NULL, 0) ? -ESRCH : 0;
}

static pid_t parent_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (read_small(path, text, sizeof text) <= 0)
        return -1;
    char *p = strrchr(text, ')');
    int ppid = -1;
    return p && sscanf(p + 1, " %*c %d", &ppid) == 1 ? ppid : -1;
}

int proc_kill_tree(pid_t pid)
{
    int killed = 0;
    DIR *d = opendir("/proc");
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        pid_t p = (pid_t)strtol(ent->d_name, NULL, 10);
        if (p <= 1 || p == pid || parent_of(p) != pid)
            continue;
        killed += proc_kill_tree(p);
        killed += kill(p, SIGKILL) == 0;
    }
    if (d)
        closedir(d);
    return killed;
}

void proc_each_with_env(const char *entry, void (*fn)(struct proc_id id, void *ctx), void *ctx)
{
    size_t cap = 256 * 1024, want = strlen(entry);
    CLEANUP(free_charp) char *text = xmalloc(cap);
    DIR *d = opendir("/proc");
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        struct proc_id id = {.pid = (pid_t)strtol(ent->d_name, NULL, 10)};
        if (id.pid <= 1 || proc_start_time(id.pid, &id.start))
            continue;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/environ", (int)id.pid);
        ssize_t n = read_small(path, text, cap);
        for (char *p = text; n > 0 && p < text + n; p += strlen(p) + 1) {
            if (strncmp(p, entry, want + 1) == 0) {
                fn(id, ctx);
                break;
            }
        }
    }
    if (d)
        closedir(d);
}

int file_replace(const char *path, struct str text, mode_t mode)
{
    CLEANUP(free_charp) char *tmp = xasprintf("%s.new.%d", path, (int)gettid());
    CLEANUP(close_fdp) int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    if (fd < 0)
        return -errno;
    size_t at = 0;
    while (at < text.n) {
        ssize_t w = write(fd, text.p + at, text.n - at);
        if (w <= 0) {
            int code = w < 0 ? -errno : -EIO;
            unlink(tmp);
            return code;
        }
        at += (size_t)w;
    }
    if (fchmod(fd, mode) || rename(tmp, path)) {
        int code = -errno;
        unlink(tmp);
        return code;
    }
    return 0;
}

int file_replace_json(const char *path, const json_t *o)
{
    struct buf b;
    buf_init(&b, 4 << 20);
    int r = json_write(o, false, &b);
    if (!r)
        r = file_replace(path, buf_view(&b), 0600);
    buf_fini(&b);
    return r;
}

int dir_make(const char *path, mode_t mode, struct err *e)
{
    CLEANUP(free_charp) char *p = xstrdup(path);
    for (char *s = p + 1;; s++) {
        if (*s != '/' && *s)
            continue;
        char was = *s;
        *s = 0;
        if (mkdir(p, mode) && errno != EEXIST)
            return err_set(e, errno, "can't make the folder %s: %s", p, strerror(errno));
        if (!was)
            return 0;
        *s = was;
    }
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    remove(path);
    return 0;
}

void dir_remove(const char *path)
{
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}
