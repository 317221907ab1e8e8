#include "cli/common.h"
#include "cli/verbs.h"
#include "lib/base/clock.h"
#include "lib/base/conf.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

struct run_options {
    struct up_options up;
    const char *system, *deployment;
    uint64_t max_tokens;
    double temperature;
};

static const struct conf_opt options[] = {
    {"--data", "BATON_DATA", CONF_STR, CONF(struct run_options, up.data), "", 0, 0,
     "data folder (default: $XDG_STATE_HOME/baton or ~/.local/state/baton)", "DIR"},
    {"--model", NULL, CONF_STR, CONF(struct run_options, up.model), "", 0, 0,
     "GGUF file (default: what is deployed, else one of ~/.cache/baton/models)", "FILE"},
    {"--deployment", NULL, CONF_STR, CONF(struct run_options, deployment), "", 0, 0,
     "InferenceDeployment to ask (default: the only one, or chat)", "NAME"},
    {"--system", NULL, CONF_STR, CONF(struct run_options, system), "", 0, 0, "system prompt",
     "TEXT"},
    {"--max-tokens", NULL, CONF_U64, CONF(struct run_options, max_tokens), "256", 1, 1000000,
     "longest answer", "N"},
    {"--temperature", NULL, CONF_F64, CONF(struct run_options, temperature), "0", 0, 2,
     "0: the likeliest token", "T"},
    {"--port", "BATON_ROUTER_PORT", CONF_U64, CONF(struct run_options, up.router_port), "0", 0,
     65535, "port of the OpenAI API if the cluster must be started", "PORT"},
    {"--models-dir", NULL, CONF_STR, CONF(struct run_options, up.models_dir), "", 0, 0,
     "folder behind /var/lib/baton/models (default: ~/.cache/baton/models)", "DIR"},
    {"--wait", NULL, CONF_U64, CONF(struct run_options, up.wait_seconds), "120", 1, 86400,
     "longest to wait until it is ready", "SECONDS"},
    {0}};
static const struct conf_prog prog = {"baton run",
                                      "Asks a question and streams the answer. Starts the cluster "
                                      "and a model when none runs; it stays for the next\n"
                                      "question (`baton down` ends it).",
                                      "[options] \"QUESTION\"", options};

/* A model to begin with: the sample's own when its file is there, else the first GGUF file that is
 * for chat. */
static char *pick_model(const char *dir)
{
    CLEANUP(free_charp) char *own = xasprintf("%s/SmolLM2-135M-Instruct.Q4_1.gguf", dir);
    if (access(own, R_OK) == 0)
        return xstrdup(own);
    char *best = NULL;
    bool best_chat = false;
    DIR *d = opendir(dir);
    struct dirent *ent;
    while (d && (ent = readdir(d))) {
        size_t n = strlen(ent->d_name);
        bool chat = strcasestr(ent->d_name, "instruct") || strcasestr(ent->d_name, "-it") ||
                    strcasestr(ent->d_name, "chat");
        if (n < 6 || strcasecmp(ent->d_name + n - 5, ".gguf") != 0 ||
            (best && (best_chat || !chat)))
            continue;
        free(best);
        best = xasprintf("%s/%s", dir, ent->d_name);
        best_chat = chat;
    }
    if (d)
        closedir(d);
    return best;
}

static json_t *list_infds(struct kube_client *k, struct err *e)
{
    struct kube_call call = {.verb = KUBE_LIST, .kind = &kube_infds, .namespace = "default"};
    struct kube_result r;
    json_t *items = NULL;
    if (kube_run(k, &call, &r) == 0)
        items = json_incref(json_at(r.object, "items"));
    else
        *e = r.err;
    kube_result_fini(&r);
    return items;
}

static bool has_source(const json_t *infd, const char *file)
{
    char *real = realpath(file, NULL);
    const char *source = json_str_at(infd, "spec.model.source", "");
    const char *base = real ? strrchr(real, '/') : NULL, *other = strrchr(source, '/');
    bool same = real && (strncmp(source, "file://", 7) == 0) &&
                (strcmp(source + 7, real) == 0 || (base && other && strcmp(base, other) == 0));
    free(real);
    return same;
}

/* The deployment to ask: the one named, the one with the model file, the only one, `chat`; made
 * when there is none. */
static int choose(struct kube_client *k, const struct run_options *o, char name[64], struct err *e)
{
    CLEANUP(json_decrefp) json_t *items = list_infds(k, e);
    const json_t *found = NULL;
    size_t i;
    json_t *d;
    if (!items)
        return -e->code;
    json_array_foreach (items, i, d) {
        const char *its = json_str_at(d, "metadata.name", "");
        bool match = *o->deployment ? strcmp(its, o->deployment) == 0
                     : *o->up.model ? has_source(d, o->up.model)
                                    : json_array_size(items) == 1 || strcmp(its, "chat") == 0;
        if (match)
            found = d;
    }
    if (!found && !*o->up.model && !*o->deployment && json_array_size(items))
        found = json_array_get(items, 0);
    if (found) {
        snprintf(name, 64, "%s", json_str_at(found, "metadata.name", ""));
        return 0;
    }
    if (*o->deployment)
        return err_set(e, ENOENT, "there is no InferenceDeployment %s", o->deployment);
    CLEANUP(free_charp)
    char *dir = *o->up.models_dir ? xstrdup(o->up.models_dir) : cli_models_dir();
    CLEANUP(free_charp) char *file = *o->up.model ? xstrdup(o->up.model) : pick_model(dir);
    if (!file)
        return err_set(
            e, ENOENT,
            "there is no model: name a GGUF file with --model, or put one into %s (make setup)",
            dir);
    progress("deploying %s", file);
    return up_apply_model(k, file, *o->up.model ? NULL : "chat", name, e);
}

/* The model's served name once the deployment is ready. */
static int wait_ready(struct kube_client *k, const char *name, uint64_t deadline_ns, char **model,
                      struct err *e)
{
    char why[400] = "";
    while (clock_mono_ns() < deadline_ns) {
        struct kube_call call = {
            .verb = KUBE_GET, .kind = &kube_infds, .namespace = "default", .name = name};
        struct kube_result r;
        size_t i;
        json_t *c;
        bool ready = false;
        int bad = kube_run(k, &call, &r);
        json_array_foreach (json_at(r.object, "status.conditions"), i, c) {
            if (strcmp(json_str_at(c, "type", ""), "Ready") != 0)
                continue;
            ready = strcmp(json_str_at(c, "status", ""), "True") == 0;
            snprintf(why, sizeof why, "%s",
                     json_str_at(c, "message", json_str_at(c, "reason", "")));
        }
        if (ready)
            *model = xstrdup(json_str_at(r.object, "spec.model.name", name));
        kube_result_fini(&r);
        if (ready && !bad)
            return 0;
        progress("waiting for %s%s%.200s", name, *why ? ": " : "", why);
        poll(NULL, 0, 100);
    }
    return err_set(e, ETIMEDOUT, "%s is not ready%s%.300s; `baton status` tells more", name,
                   *why ? ": " : "", why);
}

struct answer {
    struct buf line;
    struct buf error;
    int status;
    uint64_t sent_ns, first_ns, last_ns;
    int64_t tokens, chunks;
    char prefill[160], decode[160];
    bool newline;
};

/* The pod's name out of "name:incarnation". */
static void keep_name(struct http_call *c, const char *header, char *out, size_t n)
{
    const char *v = http_header(c, header); /* valid until the next call */
    snprintf(out, n, "%.*s", v ? (int)strcspn(v, ":") : 0, v ? v : "");
}

static int on_headers(struct http_call *c, int status, void *ctx)
{
    struct answer *a = ctx;
    a->status = status;
    keep_name(c, "x-baton-prefill", a->prefill, sizeof a->prefill);
    keep_name(c, "x-baton-decode", a->decode, sizeof a->decode);
    return 0;
}

static void on_event(struct answer *a, struct str line)
{
    static const struct str prefix = {"data:", 5};
    if (!str_starts(line, prefix))
        return;
    struct str text = str_trim((struct str){line.p + prefix.n, line.n - prefix.n});
    CLEANUP(json_decrefp)
    json_t *o = str_eq_c(text, "[DONE]") ? NULL : json_parse(text, 1 << 20, 0, NULL);
    const char *piece =
        json_str_at(o, "choices.0.delta.content", json_str_at(o, "choices.0.text", ""));
    const char *error = json_str_at(o, "error.message", NULL);
    a->tokens = json_int_at(o, "usage.completion_tokens", a->tokens);
    if (error && !a->error.n && buf_cstr(&a->error, error))
        return;
    if (!*piece)
        return;
    a->last_ns = clock_mono_ns();
    a->first_ns = a->first_ns ? a->first_ns : a->last_ns;
    a->chunks++;
    a->newline = piece[strlen(piece) - 1] == '\n';
    fputs(piece, stdout);
    fflush(stdout);
}

static int on_data(struct http_call *c, struct str piece, void *ctx)
{
    (void)c;
    struct answer *a = ctx;
    if (a->status != 200)
        return buf_str(&a->error, piece);
    if (buf_str(&a->line, piece))
        return -1;
    char *nl;
    while (a->line.n && (nl = memchr(a->line.data, '\n', a->line.n))) {
        size_t n = (size_t)(nl - a->line.data);
        on_event(a, str_trim((struct str){a->line.data, n}));
        buf_consume(&a->line, n + 1);
    }
    return 0;
}

static json_t *messages(const struct run_options *o, const char *text)
{
    json_t *list = json_array();
    if (*o->system)
        json_array_append_new(list,
                              json_pack("{s:s, s:s}", "role", "system", "content", o->system));
    json_array_append_new(list, json_pack("{s:s, s:s}", "role", "user", "content", text));
    return list;
}

/* NULL: the text is not UTF-8. */
static json_t *question(const struct run_options *o, const char *model, const char *text, bool chat)
{
    json_t *q = json_pack("{s:s, s:b, s:{s:b}, s:I, s:f}", "model", model, "stream", 1,
                          "stream_options", "include_usage", 1, "max_tokens",
                          (json_int_t)o->max_tokens, "temperature", o->temperature);
    json_t *what = chat ? messages(o, text) : json_string(text);
    bool bad = !q || !what || (chat && json_array_size(what) == 0) ||
               json_object_set_new(q, chat ? "messages" : "prompt", what);
    if (bad) {
        json_decref(q);
        return NULL;
    }
    return q;
}

static void summary(const struct answer *a)
{
    bool apart = *a->prefill && *a->decode && strcmp(a->prefill, a->decode) != 0;
    double ttft = (double)(a->first_ns - a->sent_ns) / 1e6;
    double rest = (double)(a->last_ns - a->first_ns) / 1e9;
    int64_t n = a->tokens ? a->tokens : a->chunks;
    if (!a->newline)
        putchar('\n');
    fflush(stdout);
    if (apart)
        fprintf(stderr, "— prefilled by %s, decoded by %s", a->prefill, a->decode);
    else
        fprintf(stderr, "— served by %s", *a->decode ? a->decode : "a worker");
    fprintf(stderr, "; first token after %.0f ms, %lld tokens", ttft, (long long)n);
    if (n > 1 && rest > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)(n - 1) / rest);
    fputc('\n', stderr);
}

static int ask(const struct cluster *c, const struct run_options *o, const char *model,
               const char *text, bool chat, struct err *e)
{
    struct answer a = {0};
    struct buf body, out;
    CLEANUP(json_decrefp) json_t *q = question(o, model, text, chat);
    CLEANUP(free_charp)
    char *url = xasprintf("http://127.0.0.1:%llu/v1/%s", (unsigned long long)c->router_port,
                          chat ? "chat/completions" : "completions");
    const char *key = getenv("OPENAI_API_KEY");
    CLEANUP(free_charp)
    char *auth = key && *key ? xasprintf("Authorization: Bearer %s", key) : NULL;
    const char *headers[] = {"Content-Type: application/json", auth, NULL};
    buf_init(&body, 32 << 20);
    buf_init(&out, 1 << 20);
    buf_init(&a.line, 1 << 20);
    buf_init(&a.error, 1 << 16);
    struct http_client_config hc = {.user_agent = "baton-cli"};
    struct http_request r = {.method = "POST",
                             .url = url,
                             .headers = headers,
                             .on_headers = on_headers,
                             .on_data = on_data,
                             .ctx = &a};
    int bad =
        q ? json_write(q, false, &body) : err_set(e, EINVAL, "the question is not valid UTF-8");
    if (isatty(STDERR_FILENO))
        fputs("\r\033[K", stderr);
    if (!bad) {
        r.body = buf_view(&body);
        a.sent_ns = clock_mono_ns();
        int status = http_run(&hc, &r, &out, e);
        bad = status < 0 ? status : 0;
    }
    if (!bad && (a.status != 200 || a.error.n)) {
        CLEANUP(json_decrefp) json_t *o2 = json_parse(buf_view(&a.error), 1 << 16, 0, NULL);
        bad = err_set(e, EPROTO, "the router answered %d: %.400s", a.status,
                      json_str_at(o2, "error.message", a.error.data ? a.error.data : ""));
    }
    if (!bad)
        summary(&a);
    buf_fini(&body);
    buf_fini(&out);
    buf_fini(&a.line);
    buf_fini(&a.error);
    return bad;
}

static int run(struct cluster *c, const struct run_options *o, const char *text, struct err *e)
{
    uint64_t deadline = clock_mono_ns() + o->up.wait_seconds * NS_PER_S;
    struct kube_client *k;
    char name[64];
    CLEANUP(free_charp) char *model = NULL;
    int r = c->supervisor > 0 ? 0 : up_start(c, &o->up, e);
    if (r || (r = cluster_client(c, &k, e)))
        return r;
    if (!(r = choose(k, o, name, e)))
        r = wait_ready(k, name, deadline, &model, e);
    kube_client_free(k);
    if (r || !(r = ask(c, o, model, text, true, e)) || !strstr(e->msg, "no chat template"))
        return r;
    progress_done("%s is a base model without a chat template: it goes on with the text", model);
    return ask(c, o, model, text, false, e);
}

int run_main(int argc, char **argv)
{
    static const char *const flags[] = {"--help", "--version", NULL};
    struct run_options o = {0};
    struct cluster c;
    struct err e = {0};
    int first;
    cli_options_first(argc, argv, flags);
    int r = conf_parse(&prog, argc, argv, &o, &first, &e);
    if (r > 0)
        return 0;
    if (!r && first + 1 != argc)
        r = err_set(
            &e, EINVAL,
            "one question in quotes is wanted: baton run \"What is the capital of France?\"");
    if (r) {
        cli_fail("run", &e);
        return 2;
    }
    if (cluster_find(o.up.data, &c, &e))
        return cli_fail("run", &e);
    r = run(&c, &o, argv[first], &e);
    if (r)
        cli_fail("run", &e);
    cluster_fini(&c);
    return r ? 1 : 0;
}
