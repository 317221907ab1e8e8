/* People and autoscalers: they create, scale, roll, undo, break and delete, each at a drawn time.
 */
#include "sim/sim.h"

#include "lib/kube/types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INFDS "/apis/serving.baton.dev/v1alpha1/namespaces/" SIM_SPACE "/inferencedeployments"
#define POOLS "/apis/serving.baton.dev/v1alpha1/namespaces/" SIM_SPACE "/workerpools"
#define MERGE "application/merge-patch+json"

static struct {
    struct rng rng;
    uint64_t until;
    bool unified, external, bounded;
    unsigned revision, foreign, coming, pods;
    json_t *spec; /* what `chat` is made of */
} U;

static uint64_t below(uint64_t n)
{
    return rng_below(&U.rng, n);
}

static json_t *role(unsigned replicas)
{
    json_t *r = json_object();
    if (U.pods > 1)
        json_object_set_new(r, "parallelism",
                            json_pack("{s:i, s:i}", "tensor", (int)U.pods, "pods", (int)U.pods));
    if (U.bounded)
        json_object_set_new(r, "bounds", json_pack("{s:i, s:i}", "min", 1, "max", 6));
    else if (!U.external)
        json_object_set_new(r, "replicas", json_integer(replicas));
    return r;
}

static const char *image(unsigned revision)
{
    static char text[32];
    snprintf(text, sizeof text, "baton:r%u", revision);
    return text;
}

/* Not both may be zero. */
static json_t *rollout(void)
{
    int unavailable = (int)below(3), surge = (int)below(3);
    return json_pack("{s:i, s:i, s:s}", "maxUnavailable", unavailable, "maxSurge",
                     unavailable || surge ? surge : 1, "drainTimeout", "60s");
}

static json_t *make_spec(unsigned a, unsigned b)
{
    json_t *s = json_pack("{s:{s:s, s:s}, s:{s:s}, s:o}", "model", "name", "m", "source",
                          "file:///var/lib/baton/models/m.gguf", "engine", "image",
                          image(U.revision), "rollout", rollout());
    if (U.external)
        json_object_set_new(s, "scaling", json_pack("{s:s}", "mode", "External"));
    if (U.unified) {
        json_object_set_new(s, "unified", role(a));
    } else {
        json_object_set_new(s, "prefill", role(a));
        json_object_set_new(s, "decode", role(b));
    }
    return s;
}

static void create(const char *name, json_t *spec)
{
    CLEANUP(json_decrefp) json_t *answer = NULL;
    int status =
        net_call("user", "POST", INFDS, NULL,
                 json_pack("{s:s, s:s, s:{s:s}, s:O}", "apiVersion", "serving.baton.dev/v1alpha1",
                           "kind", "InferenceDeployment", "metadata", "name", name, "spec", spec),
                 &answer);
    if (status != 201)
        check_fail("the InferenceDeployment was refused: %s", json_str_at(answer, "message", ""));
}

static void create_chat(void *arg)
{
    (void)arg;
    U.coming--;
    if (!server_get("inferencedeployments", "chat"))
        create("chat", U.spec);
}

static void patch_chat(json_t *spec)
{
    net_call("user", "PATCH", INFDS "/chat", MERGE, json_pack("{s:o}", "spec", spec), NULL);
}

static const char *any_role(void)
{
    return U.unified ? "unified" : below(2) ? "prefill" : "decode";
}

/* ---- what people do ---- */

static void set_replicas(void)
{
    unsigned n = (unsigned)below(6);
    if (!U.external && !U.bounded)
        patch_chat(json_pack("{s:{s:i}}", any_role(), "replicas", (int)n));
}

static void scale_pool(const char *name, unsigned n)
{
    char path[200];
    json_t *scale;
    snprintf(path, sizeof path, POOLS "/%s/scale", name);
    if (net_call("hpa", "GET", path, NULL, NULL, &scale) == 200) {
        json_object_set_new(json_object_get(scale, "spec"), "replicas", json_integer(n));
        net_call("hpa", "PUT", path, NULL, scale, NULL);
    } else {
        json_decref(scale);
    }
}

static void autoscale(void)
{
    char name[64];
    snprintf(name, sizeof name, "chat-%s", any_role());
    scale_pool(name, (unsigned)below(6));
}

static void roll(void)
{
    patch_chat(json_pack("{s:{s:s}}", "engine", "image", image(++U.revision)));
}

static void undo(void)
{
    if (U.revision)
        patch_chat(json_pack("{s:{s:s}}", "engine", "image", image(--U.revision)));
}

static void edit_thrice(void)
{
    roll();
    roll();
    roll();
}

static void roll_and_scale(void)
{
    if (U.external || U.bounded)
        return;
    patch_chat(json_pack("{s:{s:s}, s:{s:i}}", "engine", "image", image(++U.revision), any_role(),
                         "replicas", (int)below(6)));
}

static void budget(void)
{
    patch_chat(json_pack("{s:o}", "rollout", rollout()));
}

static void standby(void)
{
    patch_chat(json_pack("{s:{s:i}}", "standby", "hot", (int)below(3)));
}

struct pick {
    uint64_t left;
    char name[80];
};

static bool pick_nth(json_t *doc, void *ctx)
{
    struct pick *p = ctx;
    snprintf(p->name, sizeof p->name, "%s", json_str_at(doc, "metadata.name", ""));
    return p->left-- > 0;
}

static const char *any(const char *plural)
{
    static struct pick p;
    p = (struct pick){.left = below(8)};
    server_each(plural, pick_nth, &p);
    return p.name;
}

static void delete_at(const char *prefix, const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", prefix, name);
    if (*name)
        net_call("user", "DELETE", path, NULL, NULL, NULL);
}

static void delete_pod(void)
{
    delete_at("/api/v1/namespaces/" SIM_SPACE "/pods", any("pods"));
}

static void delete_pool(void)
{
    delete_at(POOLS, any("workerpools"));
}

static void delete_budget(void)
{
    delete_at("/apis/policy/v1/namespaces/" SIM_SPACE "/poddisruptionbudgets",
              any("poddisruptionbudgets"));
}

static void delete_secret(void)
{
    delete_at("/api/v1/namespaces/" SIM_SPACE "/secrets", any("secrets"));
}

/* A tool that replaces whole objects drops our notes (Dynamo #13495). */
static void drop_annotations(void)
{
    char path[200];
    snprintf(path, sizeof path, POOLS "/%s", any("workerpools"));
    net_call("user", "PATCH", path, MERGE,
             json_pack("{s:{s:{s:n}}}", "metadata", "annotations", ANN_LAST_REPLICAS), NULL);
}

static void delete_chat(void)
{
    delete_at(INFDS, "chat");
    U.coming++;
    sim_at((1 + below(20)) * NS_PER_S, create_chat, NULL);
}

/* Someone else's pod that carries our label. */
static void foreign_pod(void)
{
    char name[32];
    snprintf(name, sizeof name, "chat-foreign-%u", U.foreign++);
    net_call("user", "POST", "/api/v1/namespaces/" SIM_SPACE "/pods", NULL,
             json_pack("{s:s, s:s, s:{s:s, s:{s:s, s:s, s:s}}, s:{s:[{s:s, s:s}]}}", "apiVersion",
                       "v1", "kind", "Pod", "metadata", "name", name, "labels", LABEL_INFD, "chat",
                       LABEL_ROLE, any_role(), LABEL_RANK, "0", "spec", "containers", "name", "x",
                       "image", "x:1"),
             NULL);
}

static void rival(void)
{
    if (server_get("inferencedeployments", "other")) {
        delete_at(INFDS, "other");
        return;
    }
    bool unified = U.unified;
    U.unified = true;
    CLEANUP(json_decrefp) json_t *spec = make_spec(1, 1);
    U.unified = unified;
    if (below(2))
        json_object_set_new(json_object_get(spec, "model"), "name", json_string("m2"));
    create("other", spec);
}

/* ---- what machines do ---- */

static void kill_one(void)
{
    control_kill((unsigned)below(control_count()), 500 * NS_PER_MS + below(20000) * NS_PER_MS);
}

static struct proc *one(void)
{
    return control_proc((unsigned)below(control_count()));
}

static void partition(void)
{
    struct proc *p = one();
    if (p->cut_until_ns > sim_now())
        return;
    p->cut_until_ns = sim_now() + (1 + below(60)) * NS_PER_S;
    net_counts.partitions++;
    net_trouble_until(p->cut_until_ns);
    trace("net: %s is cut off until %.3f s", p->name, (double)p->cut_until_ns / 1e9);
    if (below(2))
        net_drop(p, false);
}

/* Watches go quiet though everything else works. */
static void deafen(void)
{
    struct proc *p = one();
    if (p->deaf_until_ns > sim_now())
        return;
    p->deaf_until_ns = sim_now() + (5 + below(120)) * NS_PER_S;
    net_counts.partitions++;
    net_trouble_until(p->deaf_until_ns);
    trace("net: watches of %s are silent until %.3f s", p->name, (double)p->deaf_until_ns / 1e9);
}

static void act(void *arg)
{
    static void (*const acts[])(void) = {
        set_replicas,  set_replicas,     autoscale,   roll,        roll,        undo,
        edit_thrice,   budget,           standby,     delete_pod,  delete_pool, delete_budget,
        delete_secret, drop_annotations, delete_chat, foreign_pod, rival,       kill_one,
        kill_one,      kill_one,         partition,   partition,   deafen,      roll_and_scale,
    };
    (void)arg;
    if (sim_now() >= U.until)
        return;
    acts[below(sizeof acts / sizeof *acts)]();
    sim_at((200 + below(14000)) * NS_PER_MS, act, NULL);
}

/* ---- the stories whose every write is followed by a crash ---- */

static void scale_both(void *arg)
{
    (void)arg;
    patch_chat(json_pack("{s:{s:i}, s:{s:i}}", "prefill", "replicas", 1, "decode", "replicas", 5));
}

static void roll_once(void *arg)
{
    (void)arg;
    roll();
}

static void restart_one(void *arg)
{
    (void)arg;
    if (!cluster_restart(any("pods")))
        check_fail("no pod to restart");
}

static void fail_one(void *arg)
{
    (void)arg;
    if (!cluster_fail(any("pods"), "OOMKilled"))
        check_fail("no pod to fail");
}

static void delete_all(void *arg)
{
    (void)arg;
    delete_at(INFDS, "chat");
}

void user_start(uint64_t seed, enum user_story story, unsigned pods, uint64_t chaos_ns)
{
    static void (*const stories[])(void *) = {[STORY_SCALE] = scale_both,
                                              [STORY_ROLLOUT] = roll_once,
                                              [STORY_RESTART] = restart_one,
                                              [STORY_REPLACE] = fail_one,
                                              [STORY_DELETE] = delete_all};
    U.rng = (struct rng){rng_at(seed, 4, 0)};
    U.until = chaos_ns;
    U.coming = 1;
    if (story == STORY_RANDOM) {
        U.unified = below(3) == 0;
        U.pods = pods ? pods : below(4) ? 1 : 2 + (unsigned)below(2);
        uint64_t mode = below(5);
        U.external = mode == 0;
        U.bounded = mode == 1;
        U.spec = make_spec(1 + (unsigned)below(4), 1 + (unsigned)below(4));
        sim_at(NS_PER_S, create_chat, NULL);
        sim_at((3 + below(12)) * NS_PER_S, act, NULL);
        return;
    }
    U.pods = pods ? pods : 1;
    U.spec = make_spec(3, 3);
    json_object_set_new(json_object_get(U.spec, "rollout"), "maxUnavailable", json_integer(1));
    json_object_set_new(json_object_get(U.spec, "rollout"), "maxSurge", json_integer(1));
    sim_at(NS_PER_S, create_chat, NULL);
    if (story != STORY_CREATE)
        sim_at(60 * NS_PER_S, stories[story], NULL);
}

bool user_busy(void)
{
    return U.coming > 0;
}
