/* baton-sim-control: the control plane in virtual time, under faults drawn from a seed. */
#include "sim/sim.h"

#include "lib/base/conf.h"
#include "lib/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SETTLE_S 2400

struct options {
    uint64_t seed, runs, jobs, kill, pods;
    const char *story;
    bool trace, everywhere, keep_going;
};

#define O(f, k, m, d, lo, hi, a, h)                                                                \
    {                                                                                              \
        f, NULL, k, offsetof(struct options, m), d, lo, hi, h, a                                   \
    }
static const struct conf_opt option_table[] = {
    O("--seed", CONF_U64, seed, "1", 0, 1e15, "N", "the first seed"),
    O("--runs", CONF_U64, runs, "1", 1, 10000000, "N", "seeds to run, one after another"),
    O("--jobs", CONF_U64, jobs, "1", 1, 256, "N", "runs at a time"),
    O("--story", CONF_STR, story, "random", 0, 0, "NAME",
      "random, create, scale, rollout, restart (ranks die), replace (a pod fails) or delete"),
    O("--pods", CONF_U64, pods, "0", 0, 8, "N", "pods of a group; 0: drawn, or one in a story"),
    O("--kill", CONF_U64, kill, "0", 0, 100000, "K",
      "kill the controller after its K-th write; 0: never"),
    O("--everywhere", CONF_BOOL, everywhere, NULL, 0, 0, NULL,
      "run the story with a kill after each of its writes"),
    O("--keep-going", CONF_BOOL, keep_going, NULL, 0, 0, NULL, "don't end at the first failure"),
    O("--trace", CONF_BOOL, trace, NULL, 0, 0, NULL, "print everything that happens"),
    {0},
};
static const struct conf_prog program = {
    .name = "baton-sim-control",
    .summary = "Runs the controller against the embedded API server in virtual time, with faults "
               "drawn from a seed, and checks invariants at every write.",
    .usage = "[options]",
    .opts = option_table,
};

bool trace_on;
uint64_t trace_hash = 0xcbf29ce484222325ull;

void trace(const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    int n = snprintf(line, sizeof line, "%12.6f ", (double)sim_now() / 1e9);
    va_start(ap, fmt);
    vsnprintf(line + n, sizeof line - (size_t)n, fmt, ap);
    va_end(ap);
    for (const char *p = line; *p; p++)
        trace_hash = (trace_hash ^ (uint8_t)*p) * 0x100000001b3ull;
    if (trace_on)
        puts(line);
}

/* ---- one run ---- */

struct result {
    char failure[512];
    uint64_t seed, kill, hash, checks, writes, kills, leaders, settle_ns;
    struct net_counts net;
};

static enum user_story story_of(const char *name)
{
    static const char *const names[] = {"random",  "create",  "scale", "rollout",
                                        "restart", "replace", "delete"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0)
            return (enum user_story)i;
    return (enum user_story) - 1;
}

/* Each seed has faults of its own kind and strength; one in eight has none. */
static void hostility(struct rng *r, struct cluster_faults *f)
{
    double net = rng_below(r, 8) ? rng_unit(r) * rng_unit(r) : 0;
    double pods = rng_below(r, 4) ? rng_unit(r) * rng_unit(r) : 0;
#define SOME(x) (rng_below(r, 2) ? (x)*rng_unit(r) : 0)
    net_faults = (struct net_faults){
        .lose_request = SOME(0.10 * net),
        .lose_answer = SOME(0.15 * net),
        .refuse = SOME(0.25 * net),
        .conflict = SOME(0.15 * net),
        .slow = SOME(0.5 * net),
        .slow_ns = rng_below(r, 4 * NS_PER_S),
        .cut_stream = SOME(0.8 * net),
        .lose_frame = SOME(0.05 * net),
        .twice = SOME(0.2 * net),
        .reorder = SOME(0.2 * net),
        .gone = SOME(0.5 * net),
    };
    f->crash = SOME(1.5 * pods);
    f->restart = SOME(1.5 * pods);
    f->evict = SOME(1.0 * pods);
    f->node_death = SOME(0.5 * pods);
    f->slow_start = SOME(0.5 * pods);
    f->nodes = 2 + (unsigned)rng_below(r, 4);
    f->slots = rng_below(r, 4) ? 20 : 3;
#undef SOME
}

static void fail_unsettled(const char *why)
{
    check_fail("not settled %d s after the last fault: %s", SETTLE_S, why);
}

static void settle(struct result *out)
{
    char why[300];
    uint64_t began = sim_now();
    for (;;) {
        if (!sim_run(sim_now() + 2 * NS_PER_S))
            return;
        const char *pending = control_pending();
        if (check_settled(why, sizeof why) && !pending)
            break;
        if (!*why)
            snprintf(why, sizeof why, "a controller waits for %s", pending);
        if (sim_now() > began + SETTLE_S * NS_PER_S) {
            fail_unsettled(why);
            return;
        }
    }
    out->settle_ns = sim_now() - began;
    trace("settled");
    uint64_t writes = control_writes;
    if (!sim_run(sim_now() + 60 * NS_PER_S))
        return;
    if (!check_settled(why, sizeof why))
        check_fail("did not stay settled: %s", why);
    if (control_writes > writes + 2)
        check_fail("settled, but %llu writes followed",
                   (unsigned long long)(control_writes - writes));
    check_end();
}

static void run(const struct options *o, uint64_t seed, uint64_t kill, struct result *out)
{
    enum user_story story = story_of(o->story);
    struct cluster_faults f = {.nodes = 4, .slots = 20};
    struct rng r = {rng_at(seed, 5, 0)};
    uint64_t chaos = (story == STORY_RANDOM ? 30 + rng_below(&r, 120) : 60) * NS_PER_S;
    sim_seed(seed);
    net_seed(seed);
    if (story == STORY_RANDOM)
        hostility(&r, &f);
    control_kill_after(kill);
    cluster_start(seed, &f);
    user_start(seed, story, (unsigned)o->pods, chaos);
    control_start(story == STORY_RANDOM && rng_below(&r, 3) == 0 ? 1 : 2);
    if (sim_run(chaos)) {
        trace("calm");
        net_calm();
        cluster_calm();
        settle(out);
    }
    snprintf(out->failure, sizeof out->failure, "%s", check_failure);
    out->hash = trace_hash;
    out->checks = check_count;
    out->writes = control_writes;
    out->kills = control_kills;
    out->leaders = control_leaders;
    out->net = net_counts;
}

/* ---- many runs ---- */

struct totals {
    struct result sum;
    uint64_t runs, failed, longest_settle_ns;
};

static void add(struct totals *t, const struct result *r)
{
    uint64_t *sum = (uint64_t *)&t->sum.net;
    const uint64_t *one = (const uint64_t *)&r->net;
    t->runs++;
    t->sum.checks += r->checks;
    t->sum.writes += r->writes;
    t->sum.kills += r->kills;
    t->sum.leaders += r->leaders;
    t->sum.hash ^= rng_at(r->hash, r->seed, r->kill);
    for (size_t i = 0; i < sizeof r->net / sizeof *sum; i++)
        sum[i] += one[i];
    if (r->settle_ns > t->longest_settle_ns)
        t->longest_settle_ns = r->settle_ns;
    if (!*r->failure)
        return;
    t->failed++;
    printf("seed %llu%s: %s\n", (unsigned long long)r->seed,
           r->kill ? xasprintf(" kill %llu", (unsigned long long)r->kill) : "", r->failure);
    fflush(stdout);
}

/* A run in a process of its own; its result comes through a pipe. */
struct child {
    pid_t pid;
    int fd;
};

static struct child spawn(const struct options *o, uint64_t seed, uint64_t kill)
{
    int fd[2], bad = pipe(fd);
    ASSERT(!bad);
    fflush(stdout);
    pid_t pid = fork();
    ASSERT(pid >= 0);
    if (pid == 0) {
        struct result r = {.seed = seed, .kill = kill};
        close(fd[0]);
        if (!o->trace && !freopen("/dev/null", "w", stderr))
            _exit(1);
        run(o, seed, kill, &r);
        fflush(stdout);
        bool sent = write(fd[1], &r, sizeof r) == (ssize_t)sizeof r;
        _exit(sent ? 0 : 1);
    }
    close(fd[1]);
    return (struct child){pid, fd[0]};
}

static bool collect(struct child c, uint64_t seed, uint64_t kill, struct totals *t,
                    struct result *last)
{
    struct result r;
    bool whole = read(c.fd, &r, sizeof r) == (ssize_t)sizeof r;
    close(c.fd);
    waitpid(c.pid, NULL, 0);
    if (!whole) {
        r = (struct result){.seed = seed, .kill = kill};
        snprintf(r.failure, sizeof r.failure, "the simulation itself crashed");
    }
    add(t, &r);
    *last = r;
    return !*r.failure;
}

static bool run_all(const struct options *o, struct totals *t, struct result *last)
{
    struct child children[256];
    uint64_t started = 0;
    bool go = true;
    for (uint64_t done = 0; done < o->runs; done++) {
        for (; go && started < o->runs && started < done + o->jobs; started++)
            children[started % o->jobs] = spawn(o, o->seed + started, o->kill);
        if (done == started)
            break;
        bool ok = collect(children[done % o->jobs], o->seed + done, o->kill, t, last);
        go = go && (ok || o->keep_going);
    }
    return t->failed == 0;
}

/* The story without a kill tells how many writes there are; then one run for each. */
static bool run_everywhere(const struct options *o, struct totals *t)
{
    struct result r;
    if (!collect(spawn(o, o->seed, 0), o->seed, 0, t, &r))
        return false;
    uint64_t n = r.writes;
    for (uint64_t k = 1; k <= n; k++)
        if (!collect(spawn(o, o->seed, k), o->seed, k, t, &r) && !o->keep_going)
            break;
    printf("%s: %llu writes, a kill after each\n", o->story, (unsigned long long)n);
    return t->failed == 0;
}

static void report(const struct totals *t)
{
    const struct net_counts *n = &t->sum.net;
    struct rusage own, children;
    getrusage(RUSAGE_SELF, &own);
    getrusage(RUSAGE_CHILDREN, &children);
#define U(x) (unsigned long long)(x)
    printf("runs %llu, failed %llu; invariants checked %llu times\n", U(t->runs), U(t->failed),
           U(t->sum.checks));
    printf("controllers: %llu writes, %llu killed, %llu times a new leader\n", U(t->sum.writes),
           U(t->sum.kills), U(t->sum.leaders));
    printf("network: %llu requests; lost %llu requests and %llu answers, refused %llu (429, 500, "
           "503, 504), 409 %llu, 410 %llu, slow %llu\n",
           U(n->requests), U(n->lost_requests), U(n->lost_answers), U(n->refused), U(n->conflicts),
           U(n->gone), U(n->slow));
    printf("watches: %llu cut, frames lost %llu, doubled %llu, reordered %llu; partitions %llu\n",
           U(n->cuts), U(n->lost_frames), U(n->twice), U(n->reordered), U(n->partitions));
    printf("longest time to settle after the last fault: %.0f s\n",
           (double)t->longest_settle_ns / 1e9);
    printf("hash %016llx; CPU %.1f s\n", U(t->sum.hash),
           (double)(own.ru_utime.tv_sec + own.ru_stime.tv_sec + children.ru_utime.tv_sec +
                    children.ru_stime.tv_sec) +
               (double)(own.ru_utime.tv_usec + own.ru_stime.tv_usec + children.ru_utime.tv_usec +
                        children.ru_stime.tv_usec) /
                   1e6);
#undef U
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct err e = {0};
    struct totals t = {0};
    struct result last;
    int first, rc = conf_parse(&program, argc, argv, &o, &first, &e);
    if (rc > 0)
        return 0;
    if (rc < 0 || story_of(o.story) == (enum user_story) - 1) {
        fprintf(stderr, "baton-sim-control: %s\n", rc < 0 ? e.msg : "--story: see --help");
        return 2;
    }
    if (!getenv("GLIBC_TUNABLES")) { /* a run is a million small allocations */
        setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=65000", 1);
        execv("/proc/self/exe", argv);
    }
    char folder[] = "/tmp/baton-sim-XXXXXX";
    if (!mkdtemp(folder))
        return 2;
    json_object_seed(1);
    log_init("sim", "text", o.trace ? LOG_DEBUG : LOG_ERROR);
    server_make(folder);
    CLEANUP(free_charp) char *clean = xasprintf("rm -rf '%s'", folder);
    if (system(clean))
        fprintf(stderr, "%s could not be removed\n", folder);
    trace_on = o.trace;
    bool ok = o.everywhere ? run_everywhere(&o, &t) : run_all(&o, &t, &last);
    report(&t);
    return ok ? 0 : 1;
}
