/* baton rollout: what the revisions of a deployment are (ControllerRevisions that the controller
 * keeps), how far the newest has got, and back to an older one. Undo is a merge patch of the stored
 * parts onto the InferenceDeployment: numbers of replicas are no part of a revision. */
#include "cli/revisions.h"
#include "cli/target.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

struct rollout_options {
    struct target_options target;
    uint64_t timeout_s, to_revision;
    bool no_wait;
};

static const struct conf_opt options[] = {
    TARGET_OPTIONS(struct rollout_options, target),
    {"--timeout", NULL, CONF_U64, CONF(struct rollout_options, timeout_s), "0", 0, 604800,
     "longest that `status` waits; 0: for ever", "SECONDS"},
    {"--no-wait", NULL, CONF_BOOL, CONF(struct rollout_options, no_wait), NULL, 0, 0,
     "`status` tells how it stands and ends (code 1: not done)", NULL},
    {"--to-revision", NULL, CONF_U64, CONF(struct rollout_options, to_revision), "0", 0, 1e15,
     "revision that `undo` goes back to; 0: the one before", "N"},
    {0}};
static const struct conf_prog prog = {
    "baton rollout",
    "Follows and steers how a deployment's pods are replaced.\n"
    "  status NAME    waits until every group is of the wanted revision and ready\n"
    "  history NAME   the revisions that are kept, and what each changed\n"
    "  undo NAME      goes back to the revision before (or --to-revision N)\n"
    "  pause NAME     leaves every group at the revision that it has\n"
    "  resume NAME    goes on",
    "status|history|undo|pause|resume NAME [options]", options};

/* ---- status ---- */

/* "decode 1/2 of the new revision, 2 ready" for each role; true when all are there. */
static bool tell_roles(const json_t *d, struct buf *out)
{
    static const char *const roles[] = {"prefill", "decode", "unified"};
    bool all = true;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const json_t *s = json_object_get(json_object_get(d, "status"), roles[i]);
        if (!json_object_get(json_object_get(d, "spec"), roles[i]))
            continue;
        long long want = json_int_at(s, "desired", -1), now = json_int_at(s, "current", 0),
                  fresh = json_int_at(s, "updated", 0), ready = json_int_at(s, "ready", 0);
        all &= want >= 0 && fresh >= want && now == fresh && ready >= want;
        if (buf_printf(out, "%s%s: %lld of %lld updated, %lld ready", out->n ? "; " : "", roles[i],
                       fresh, want < 0 ? 0 : want, ready))
            return false;
    }
    return all;
}

/* 1 done, 0 not yet, negative: it will not get anywhere by itself. */
static int judge(const json_t *d, struct buf *line, struct err *e)
{
    const json_t *accepted = condition_of(d, "Accepted"), *ready = condition_of(d, "Ready"),
                 *moving = condition_of(d, "Progressing");
    const char *reason = json_str_at(moving, "reason", "");
    buf_reset(line);
    if (accepted && !condition_holds(accepted))
        return err_set(e, EINVAL, "%s: %.300s", json_str_at(accepted, "reason", ""),
                       json_str_at(accepted, "message", ""));
    if (json_int_at(d, "status.observedGeneration", 0) < json_int_at(d, "metadata.generation", 1))
        return buf_cstr(line, "the controller has not looked yet");
    bool all = tell_roles(d, line);
    if (strcmp(reason, "Paused") == 0)
        return err_set(e, ECANCELED, "the rollout is paused (%.200s): baton rollout resume %s",
                       line->data ? line->data : "", json_str_at(d, "metadata.name", ""));
    if (all && condition_holds(ready) && !condition_holds(moving))
        return 1;
    const char *why = json_str_at(ready, "message", "");
    if (!condition_holds(ready) && *why && buf_printf(line, "; %.200s", why))
        return 0;
    return 0;
}

static int status(struct target *t, const char *name, const struct rollout_options *o,
                  struct err *e)
{
    uint64_t end = o->timeout_s ? clock_mono_ns() + o->timeout_s * NS_PER_S : 0;
    struct buf line;
    int done = 0;
    buf_init(&line, 4096);
    while (!done) {
        CLEANUP(json_decrefp) json_t *d = target_get(t, &kube_infds, name, e);
        done = d ? judge(d, &line, e) : -e->code;
        if (done)
            break;
        progress("%s: %.400s", name, line.data ? line.data : "");
        if (o->no_wait || (end && clock_mono_ns() > end))
            done = err_set(e, ETIMEDOUT, "not done: %.400s", line.data ? line.data : "");
        else
            poll(NULL, 0, 500);
    }
    if (done > 0)
        progress_done("%s is rolled out: %.400s", name, line.data ? line.data : "");
    buf_fini(&line);
    return done < 0 ? done : 0;
}

/* ---- history ---- */

static void age_of(const json_t *o, char out[16])
{
    uint64_t at = 0, now = clock_wall_ns();
    const char *text = json_str_at(o, "metadata.creationTimestamp", "");
    if (clock_parse_rfc3339(text, &at) || at > now)
        at = now;
    uint64_t s = (now - at) / NS_PER_S;
    const char *unit = s < 120 ? "s" : s < 7200 ? "m" : s < 172800 ? "h" : "d";
    uint64_t n = s < 120 ? s : s < 7200 ? s / 60 : s < 172800 ? s / 3600 : s / 86400;
    snprintf(out, 16, "%llu%s", (unsigned long long)n, unit);
}

static int history(struct target *t, const char *name, struct err *e)
{
    CLEANUP(json_decrefp) json_t *d = target_get(t, &kube_infds, name, e);
    CLEANUP(json_decrefp) json_t *all = d ? revisions_list(t, d, e) : NULL;
    const json_t *before = NULL;
    size_t i;
    json_t *v;
    if (!all)
        return -e->code;
    printf("%-9s %-22s %-6s %-8s %s\n", "REVISION", "NAME", "AGE", "STATE", "CHANGE");
    json_array_foreach (all, i, v) {
        char age[16];
        const char *hash = revision_hash(v, d);
        bool wanted = strcmp(hash, json_str_at(d, "status.revision", "")) == 0;
        bool current = strcmp(hash, json_str_at(d, "status.currentRevision", "")) == 0;
        CLEANUP(free_charp) char *change = before ? revisions_change(before, v) : xstrdup("");
        age_of(v, age);
        printf("%-9lld %-22s %-6s %-8s %s\n", (long long)json_int_at(v, "revision", 0),
               json_str_at(v, "metadata.name", ""), age,
               wanted    ? "wanted"
               : current ? "serving"
                         : "",
               change);
        before = v;
    }
    return 0;
}

/* ---- undo, pause, resume ---- */

static const json_t *choose(const json_t *all, const json_t *d, uint64_t number, struct err *e)
{
    const char *wanted = json_str_at(d, "status.revision", "");
    const json_t *found = NULL;
    size_t i;
    json_t *v;
    json_array_foreach (all, i, v) { /* oldest first */
        bool match = number ? (uint64_t)json_int_at(v, "revision", 0) == number
                            : strcmp(revision_hash(v, d), wanted) != 0;
        found = match ? v : found;
    }
    if (!found && number)
        err_set(e, ENOENT, "revision %llu is not kept; see baton rollout history",
                (unsigned long long)number);
    else if (!found)
        err_set(e, ENOENT, "there is no revision before this one");
    return found;
}

static int undo(struct target *t, const char *name, uint64_t number, struct err *e)
{
    CLEANUP(json_decrefp) json_t *d = target_get(t, &kube_infds, name, e);
    CLEANUP(json_decrefp) json_t *all = d ? revisions_list(t, d, e) : NULL;
    const json_t *v = all ? choose(all, d, number, e) : NULL;
    if (!v)
        return -e->code;
    CLEANUP(json_decrefp) json_t *patch = revisions_patch(d, v);
    long long n = (long long)json_int_at(v, "revision", 0);
    if (json_object_size(patch) == 0) {
        progress_done("%s is at revision %lld already", name, n);
        return 0;
    }
    /* Nobody else's change is overwritten: the patch holds for the object that was read. */
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:s}, s:O}", "metadata", "resourceVersion",
                             json_str_at(d, "metadata.resourceVersion", ""), "spec", patch);
    int rc = target_patch(t, &kube_infds, name, body, e);
    if (!rc)
        progress_done("%s goes back to revision %lld (%s); baton rollout status %s follows it",
                      name, n, json_str_at(v, "metadata.name", ""), name);
    return rc;
}

static int set_paused(struct target *t, const char *name, bool paused, struct err *e)
{
    CLEANUP(json_decrefp)
    json_t *body = json_pack("{s:{s:{s:b}}}", "spec", "rollout", "paused", (int)paused);
    int rc = target_patch(t, &kube_infds, name, body, e);
    if (!rc)
        progress_done(paused ? "%s is paused: groups stay at the revision that they have"
                             : "%s goes on",
                      name);
    return rc;
}

static int act(struct target *t, const char *what, const char *name,
               const struct rollout_options *o, struct err *e)
{
    if (strcmp(what, "status") == 0)
        return status(t, name, o, e);
    if (strcmp(what, "history") == 0)
        return history(t, name, e);
    if (strcmp(what, "undo") == 0)
        return undo(t, name, o->to_revision, e);
    return set_paused(t, name, strcmp(what, "pause") == 0, e);
}

int rollout_main(int argc, char **argv)
{
    static const char *const flags[] = {"--no-wait", "--help", "--version", NULL};
    static const char *const verbs[] = {"status", "history", "undo", "pause", "resume"};
    struct rollout_options o = {0};
    struct target t;
    struct err e = {0};
    bool known = false;
    int first;
    target_args(argc, argv, flags);
    int r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    const char *what = !r && first < argc ? argv[first] : "";
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        known |= strcmp(what, verbs[i]) == 0;
    if (!r && (!known || argc - first != 2))
        r = err_set(&e, EINVAL, "say what to do and with which InferenceDeployment: %s %s",
                    prog.name, prog.usage);
    if (r) {
        cli_fail("rollout", &e);
        return 2;
    }
    const char *slash = strchr(argv[first + 1], '/'); /* infd/NAME as well as NAME */
    r = target_open(&o.target, &t, &e);
    if (!r) {
        r = act(&t, what, slash ? slash + 1 : argv[first + 1], &o, &e);
        target_close(&t);
    }
    return r ? cli_fail("rollout", &e) : 0;
}
