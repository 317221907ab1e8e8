#include "local/kubelet_records.h"

#include "lib/base/clock.h"

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define PROCS_MAX 4096

uint64_t records_instance_number(const char *data_dir)
{
    char *real = realpath(data_dir, NULL);
    uint64_t h = 1469598103934665603ull;
    for (const char *s = real ? real : data_dir; *s; s++)
        h = (h ^ (uint8_t)*s) * 1099511628211ull;
    free(real);
    return h;
}

void records_instance(const char *data_dir, char out[INSTANCE_MAX])
{
    snprintf(out, INSTANCE_MAX, "%016llx", (unsigned long long)records_instance_number(data_dir));
}

struct found {
    struct proc_id ids[PROCS_MAX];
    size_t n;
};

static void add(struct proc_id id, void *ctx)
{
    struct found *f = ctx;
    if (id.pid == getpid() || f->n == PROCS_MAX)
        return;
    for (size_t i = 0; i < f->n; i++) {
        if (f->ids[i].pid == id.pid)
            return;
    }
    f->ids[f->n++] = id;
}

static void add_record(const char *dir, struct found *f)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/run.json", dir);
    CLEANUP(json_decrefp) json_t *run = json_parse_file(path, 65536, NULL);
    struct proc_id main = {(pid_t)json_int_at(run, "main.pid", 0),
                           (uint64_t)json_int_at(run, "main.start", 0)};
    if (proc_alive(main))
        add(main, f);
}

/* Calls fn for every folder in dir. */
static void each_folder(const char *dir, int depth, struct found *f)
{
    DIR *d = opendir(dir);
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        if (ent->d_name[0] == '.' || ent->d_type != DT_DIR)
            continue;
        CLEANUP(free_charp) char *path = xasprintf("%s/%s", dir, ent->d_name);
        if (depth == 0)
            add_record(path, f);
        else
            each_folder(path, depth - 1, f);
    }
    if (d)
        closedir(d);
}

/* pods/<uid>/c/<name>/<attempt>/run.json, and by environment what the records don't name. */
static void find_all(const char *data_dir, struct found *f)
{
    char instance[INSTANCE_MAX];
    records_instance(data_dir, instance);
    CLEANUP(free_charp) char *pods = xasprintf("%s/pods", data_dir);
    CLEANUP(free_charp) char *entry = xasprintf("BATON_INSTANCE=%s", instance);
    f->n = 0;
    each_folder(pods, 3, f);
    proc_each_with_env(entry, add, f);
}

int records_end_all(const char *data_dir, unsigned grace_ms)
{
    static struct found f;
    find_all(data_dir, &f);
    int n = (int)f.n;
    uint64_t deadline = clock_mono_ns() + grace_ms * NS_PER_MS;
    for (size_t i = 0; i < f.n; i++) {
        if (proc_signal(f.ids[i], SIGTERM))
            f.ids[i].pid = 0;
    }
    while (f.n && clock_mono_ns() < deadline) {
        poll(NULL, 0, 20);
        find_all(data_dir, &f);
    }
    for (int round = 0; round < 100 && f.n; round++) {
        for (size_t i = 0; i < f.n; i++) {
            if (proc_signal(f.ids[i], SIGKILL))
                f.ids[i].pid = 0;
        }
        poll(NULL, 0, 20);
        find_all(data_dir, &f);
    }
    char instance[INSTANCE_MAX];
    records_instance(data_dir, instance);
    CLEANUP(free_charp) char *memory = xasprintf("/dev/shm/baton-%s", instance);
    dir_remove(memory);
    return n;
}
