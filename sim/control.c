/* Controllers: the real ones, each in a process of its own that can be killed and starts anew. */
#include "sim/sim.h"

#include "controller/controller.h"
#include "lib/base/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTROLS_MAX 3

struct control {
    struct proc *proc;
    struct ctl *ctl;
    bool watched; /* its end is being looked for */
};

static struct control controls[CONTROLS_MAX];
static unsigned n_controls;
static uint64_t kill_after;
uint64_t control_writes, control_kills, control_leaders;

/* Nobody asks for metrics, and a process that was killed does not take its own back. */
void __wrap_metrics_collect(int (*fn)(struct buf *out, void *ctx), void *ctx);
void __wrap_metrics_collect(int (*fn)(struct buf *out, void *ctx), void *ctx)
{
    (void)fn;
    (void)ctx;
}

struct proc *control_proc(unsigned i)
{
    return controls[i].proc;
}

unsigned control_count(void)
{
    return n_controls;
}

int control_leader(void)
{
    for (unsigned i = 0; i < n_controls; i++) {
        const struct control *c = &controls[i];
        if (c->proc->alive && c->ctl->leading && kube_lease_valid(c->ctl->lease))
            return (int)i;
    }
    return -1;
}

static const char *pending(const struct control *c)
{
    const struct ctl *ctl = c->ctl;
    if (ctl->stopping)
        return "its end";
    if (!ctl->leading)
        return NULL;
    if (ctl->doubts)
        return "the outcome of a write";
    if (ctl->expected)
        return "its caches to show what it wrote";
    if (queue_active(ctl->queue) || queue_depth(ctl->queue))
        return "a turn of its queue";
    return queue_retrying(ctl->queue) ? "another try of what failed" : net_open(c->proc);
}

const char *control_pending(void)
{
    const char *what = NULL;
    for (unsigned i = 0; i < n_controls && !what; i++)
        if (controls[i].proc->alive)
            what = pending(&controls[i]);
    return what;
}

static void options(struct options *out, const char *identity)
{
    char *argv[] = {"baton-controller",          "--namespace",     SIM_SPACE, "--identity",
                    (char *)(uintptr_t)identity, "--retry-seconds", "4"};
    struct err e = {0};
    int first;
    if (conf_parse(&ctl_program, sizeof argv / sizeof *argv, argv, out, &first, &e))
        check_fail("the controller's options: %s", e.msg);
}

static void start(struct control *c)
{
    static char names[CONTROLS_MAX][16];
    unsigned i = (unsigned)(c - controls);
    struct err e = {0};
    struct kube_config config = {.server = (char *)(uintptr_t)SIM_SERVER,
                                 .token = (char *)(uintptr_t)server_token("baton-controller"),
                                 .namespace = (char *)(uintptr_t)SIM_SPACE};
    snprintf(names[i], sizeof names[i], "controller-%u", i);
    c->proc = xcalloc(1, sizeof *c->proc);
    c->ctl = xcalloc(1, sizeof *c->ctl);
    proc_init(c->proc, names[i]);
    c->ctl->loop = &c->proc->loop;
    options(&c->ctl->opts, names[i]);
    trace("control: %s starts", names[i]);
    if (ctl_start(c->ctl, &config, &e))
        check_fail("%s can't start: %s", names[i], e.msg);
}

static void restart(void *arg)
{
    struct control *c = arg;
    if (!c->proc->alive)
        start(c);
}

void control_kill(unsigned i, uint64_t back_after_ns)
{
    struct control *c = &controls[i];
    if (!c->proc->alive)
        return;
    control_kills++;
    trace("control: %s is killed after %llu writes", c->proc->name,
          (unsigned long long)control_writes);
    proc_kill(c->proc);
    sim_at(back_after_ns, restart, c);
}

/* A process that ended by itself (leadership lost) is started again by its kubelet. */
static void look(void *arg)
{
    static int leader = -1;
    (void)arg;
    for (unsigned i = 0; i < n_controls; i++) {
        struct control *c = &controls[i];
        if (!c->proc->alive || !c->proc->stopped)
            continue;
        trace("control: %s ends by itself", c->proc->name);
        proc_kill(c->proc);
        sim_at(2 * NS_PER_S, restart, c);
    }
    int now = control_leader();
    if (now >= 0 && now != leader) {
        control_leaders++;
        leader = now;
    }
    sim_at(200 * NS_PER_MS, look, NULL);
}

void control_kill_after(uint64_t k)
{
    kill_after = k;
}

static void on_write(struct proc *p, const char *method, const char *path, int status)
{
    (void)method;
    if (status >= 300 || strstr(path, "/leases") || strstr(path, "/events"))
        return;
    control_writes++;
    check_leads(p->name, path);
    if (control_writes != kill_after)
        return;
    for (unsigned i = 0; i < n_controls; i++)
        if (controls[i].proc == p)
            control_kill(i, NS_PER_S);
}

void control_start(unsigned n)
{
    n_controls = n;
    net_on_write = on_write;
    for (unsigned i = 0; i < n; i++)
        start(&controls[i]);
    sim_at(0, look, NULL);
}
