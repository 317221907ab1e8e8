#include "cli/plan.h"

#include "cli/plan_load.h"
#include "lib/base/conf.h"
#include "lib/cost/plan.h"
#include "lib/json/json.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

struct options {
    const char *device, *output, *name, *source;
    uint64_t prompt, generated, batch, tensor;
    double rate, ttft, tpot, kv_bytes;
    bool disaggregate;
};

#define TIME(s)    plan_seconds(s, (char[32]){0})
#define MAX_GROUPS 1000 /* of a role, and */
#define MAX_TENSOR 64   /* ranks a group, by the InferenceDeployment's schema */
#define O(f)       CONF(struct options, f)
static const struct conf_opt table[] = {
    {"--device", NULL, CONF_STR, O(device), "h100", 0, 0,
     "built-in device or a JSON file (memory_bytes, memory_bytes_per_s, flops_bf16, "
     "link_bytes_per_s, nic_bytes_per_s, devices_per_server, nics_per_server)",
     "DEVICE"},
    {"--prompt-tokens", NULL, CONF_U64, O(prompt), "8192", 1, 16777216, "tokens of a prompt", "N"},
    {"--output-tokens", NULL, CONF_U64, O(generated), "512", 1, 16777216, "tokens of an answer",
     "N"},
    {"--batch", NULL, CONF_U64, O(batch), "64", 1, 65536, "requests that decode together", "N"},
    {"--rate", NULL, CONF_F64, O(rate), "0", 0, 1e9, "expected requests a second (0: unknown)",
     "R"},
    {"--ttft", NULL, CONF_F64, O(ttft), "0", 0, 1e6,
     "target for time to first token, seconds (0: none)", "S"},
    {"--tpot", NULL, CONF_F64, O(tpot), "0", 0, 1e6,
     "target for time per output token, seconds (0: none)", "S"},
    {"--kv-element-bytes", NULL, CONF_F64, O(kv_bytes), "2", 0.25, 8, "2 = 16-bit KV, 1 = FP8",
     "B"},
    {"--tensor", NULL, CONF_U64, O(tensor), "0", 0, 1024,
     "judge this tensor-parallel width instead of choosing one", "N"},
    {"--disaggregate", NULL, CONF_BOOL, O(disaggregate), "false", 0, 0,
     "with --tensor: judge separate prefill and decode pools", NULL},
    {"--output", NULL, CONF_STR, O(output), "table", 0, 0,
     "table, json or yaml (an InferenceDeployment ready to apply)", "FORM"},
    {"--name", NULL, CONF_STR, O(name), "", 0, 0, "with yaml: the object's name", "NAME"},
    {"--source", NULL, CONF_STR, O(source), "", 0, 0,
     "with yaml: where the weights are (hf://, https://, file://, pvc://, image://)", "URL"},
    {0}};

static const struct conf_prog prog = {
    "baton plan", "what a model needs and how to lay it out, each number with its formula",
    "MODEL [options]\n\nMODEL is built in (llama-3-70b, deepseek-v3, ...; a wrong name lists "
    "them), a .gguf file, a Hugging Face config.json or "
    "its folder, or a JSON profile.",
    table};

static void print_table(const struct plan_input *in, const struct plan *p)
{
    const char *section = "";
    printf("%s on %s: %.4g parameters, %u layers, %u KV heads; %u devices a server\n",
           in->model->name, in->device->name, in->model->params, in->model->layers,
           in->model->kv_heads, in->device->devices_per_server);
    for (size_t i = 0; i < p->n_numbers; i++) {
        const struct plan_number *n = &p->numbers[i];
        if (strcmp(section, n->section) != 0)
            printf("\n%s\n", section = n->section);
        printf("  %-44s %14s   = %s\n", n->label, n->text, n->formula);
    }
    const struct plan_layout *l = &p->layout;
    printf("\nlayout\n  TP=%u, ", l->tensor);
    if (l->disaggregate)
        printf("%u prefill and %u decode groups", l->prefill_groups, l->decode_groups);
    else
        printf("%u unified groups", l->unified_groups);
    printf("; predicted TTFT %s, TPOT %s at batch %u, no queue\n", TIME(l->ttft_s), TIME(l->tpot_s),
           in->batch);
    for (size_t i = 0; i < p->n_advice; i++)
        printf("  %s %s\n",
               p->advice[i].level == ADVICE_WARNING ? "warning:" : "note:   ", p->advice[i].text);
}

static int print_json(const struct plan_input *in, const struct plan *p)
{
    json_t *numbers = json_array(), *advice = json_array();
    for (size_t i = 0; i < p->n_numbers; i++) {
        const struct plan_number *n = &p->numbers[i];
        json_array_append_new(numbers,
                              json_pack("{s:s,s:s,s:s,s:f,s:s,s:s,s:s}", "section", n->section,
                                        "id", n->id, "label", n->label, "value", n->value, "unit",
                                        n->unit, "text", n->text, "formula", n->formula));
    }
    for (size_t i = 0; i < p->n_advice; i++)
        json_array_append_new(advice,
                              json_pack("{s:s,s:s,s:s}", "level",
                                        p->advice[i].level == ADVICE_WARNING ? "warning" : "note",
                                        "id", p->advice[i].id, "text", p->advice[i].text));
    const struct plan_layout *l = &p->layout;
    CLEANUP(json_decrefp)
    json_t *j =
        json_pack("{s:s,s:s,s:o,s:o,s:{s:i,s:b,s:i,s:i,s:i,s:f,s:f}}", "model", in->model->name,
                  "device", in->device->name, "numbers", numbers, "advice", advice, "layout",
                  "tensor", (int)l->tensor, "disaggregate", l->disaggregate, "prefill_groups",
                  (int)l->prefill_groups, "decode_groups", (int)l->decode_groups, "unified_groups",
                  (int)l->unified_groups, "ttft_s", l->ttft_s, "tpot_s", l->tpot_s);
    if (!j || json_dumpf(j, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(12)))
        return 1;
    printf("\n");
    return 0;
}

/* A DNS label out of the model's name. */
static void object_name(const char *from, char out[51])
{
    size_t n = 0;
    for (; *from && n < 50; from++) {
        char c = (char)tolower((unsigned char)*from);
        if (isalnum((unsigned char)c))
            out[n++] = c;
        else if (n && out[n - 1] != '-')
            out[n++] = '-';
    }
    while (n && out[n - 1] == '-')
        n--;
    out[n] = 0;
}

static void print_role(const char *role, uint32_t groups, const struct plan_input *in,
                       uint32_t tensor)
{
    bool gpu = in->device->memory_bytes_per_s > 2e11;
    printf("  %s:\n    replicas: %u\n    parallelism: {tensor: %u}\n", role, groups, tensor);
    if (gpu)
        printf("    resources:\n      limits: {nvidia.com/gpu: \"%u\"}\n", tensor);
}

/* A YAML scalar: quoted as JSON where it could be read as anything but this text. */
static void print_scalar(const char *key, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._:@%+=-";
    static const char *const reserved[] = {"true", "false", "null", "yes", "no",
                                           "on",   "off",   "y",    "n"};
    bool quote = !isalpha((unsigned char)*text) || text[strspn(text, plain)] ||
                 str_ends(str_c(text), STR(":"));
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        quote |= str_ieq_c(str_c(text), reserved[i]);
    struct buf b;
    buf_init(&b, 16384);
    if (quote && !buf_json_str(&b, str_c(text)))
        text = b.data;
    printf("%s: %s\n", key, text);
    buf_fini(&b);
}

static bool known_scheme(const char *source)
{
    static const char *const schemes[] = {"hf://", "https://", "file://", "pvc://", "image://"};
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++)
        if (str_starts(str_c(source), str_c(schemes[i])) && source[strlen(schemes[i])])
            return true;
    return false;
}

static int print_yaml(const struct options *o, const struct plan_input *in, const struct plan *p,
                      struct err *e)
{
    char name[51], device[51];
    const struct plan_layout *l = &p->layout;
    object_name(*o->name ? o->name : in->model->name, name);
    object_name(in->device->name, device);
    uint32_t groups = l->prefill_groups > l->decode_groups ? l->prefill_groups : l->decode_groups;
    groups = l->disaggregate ? groups : l->unified_groups;
    if (groups > MAX_GROUPS || l->tensor > MAX_TENSOR)
        return err_set(e, ERANGE,
                       "%u groups of TP=%u are more than one InferenceDeployment takes (%d groups "
                       "a role, TP=%d)",
                       groups, l->tensor, MAX_GROUPS, MAX_TENSOR);
    if (!*name)
        return err_set(e, EINVAL,
                       "the object's name needs a letter or digit; give one with --name");
    if (*o->source && !known_scheme(o->source))
        return err_set(e, EINVAL,
                       "--source is a URL that begins with hf://, https://, file://, pvc:// or "
                       "image://, not \"%s\"",
                       o->source);
    printf("# baton plan %s --device %s: predicted TTFT %s, TPOT %s at batch %u\n", name, device,
           TIME(l->ttft_s), TIME(l->tpot_s), in->batch);
    for (size_t i = 0; i < p->n_advice; i++)
        printf("# %s: %s\n", p->advice[i].level == ADVICE_WARNING ? "warning" : "note",
               p->advice[i].text);
    printf("apiVersion: serving.baton.dev/v1alpha1\nkind: InferenceDeployment\nmetadata:\n");
    print_scalar("  name", name);
    printf("spec:\n  model:\n");
    print_scalar("    name", name);
    print_scalar("    source", *o->source ? o->source : in->model->source);
    if (l->disaggregate) {
        print_role("prefill", l->prefill_groups, in, l->tensor);
        print_role("decode", l->decode_groups, in, l->tensor);
    } else {
        print_role("unified", l->unified_groups, in, l->tensor);
    }
    if (o->ttft > 0 && o->tpot > 0)
        printf("  slo: {ttft: %.0fms, tpot: %.0fms}\n", o->ttft * 1e3, o->tpot * 1e3);
    printf("  routing:\n    disaggregation: %s\n", l->disaggregate ? "auto" : "never");
    return 0;
}

static int run(int argc, char **argv, struct err *e)
{
    struct options o = {0};
    struct model_profile model;
    struct device_profile device;
    int first, rc = conf_parse(&prog, argc, argv, &o, &first, e);
    if (rc)
        return rc > 0 ? 0 : rc;
    const char *what = first < argc ? argv[first] : NULL;
    if (what &&
        first + 1 <
            argc) { /* options may follow the model too: put it last and read them all again */
        memmove(&argv[first], &argv[first + 1], (size_t)(argc - first - 1) * sizeof *argv);
        argv[argc - 1] = (char *)(uintptr_t)what;
        rc = conf_parse(&prog, argc, argv, &o, &first, e);
        if (rc)
            return rc > 0 ? 0 : rc;
        if (first < argc - 1)
            return err_set(e, EINVAL, "one MODEL is expected; \"%s\" is too much", argv[first]);
    }
    if (!what)
        return err_set(e, EINVAL, "which MODEL? One of: %s, or a file; see baton plan --help",
                       model_profile_names());
    if ((rc = plan_load_model(what, &model, e)) || (rc = plan_load_device(o.device, &device, e)))
        return rc;
    struct plan_input in = {&model,
                            &device,
                            (uint32_t)o.prompt,
                            (uint32_t)o.generated,
                            (uint32_t)o.batch,
                            o.kv_bytes,
                            o.rate,
                            o.ttft,
                            o.tpot,
                            (uint32_t)o.tensor,
                            o.disaggregate};
    CLEANUP(free_charp) char *memory = xcalloc(1, sizeof(struct plan));
    struct plan *p = (struct plan *)(void *)memory;
    if ((rc = plan_compute(&in, p, e)))
        return rc;
    if (strcmp(o.output, "json") == 0)
        return print_json(&in, p);
    if (strcmp(o.output, "yaml") == 0)
        return print_yaml(&o, &in, p, e);
    if (strcmp(o.output, "table") != 0)
        return err_set(e, EINVAL, "--output is table, json or yaml, not \"%s\"", o.output);
    print_table(&in, p);
    return 0;
}

int cmd_plan(int argc, char **argv)
{
    struct err e = {0};
    int rc = run(argc, argv, &e);
    if (rc < 0)
        fprintf(stderr, "baton plan: %s\n", e.msg);
    return rc < 0 ? 2 : rc;
}
