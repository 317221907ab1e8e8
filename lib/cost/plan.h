/* plan.h: capacity and layout on paper: KV a token, weights a device, decode bounds, all-reduce, KV
 * transfer, recompute against load, expert parallelism; each number with the formula it came from.
 * Then advice with reasons. Pure.
 *
 * Conventions of the field that are followed: GB = 1e9 bytes, KiB = 1024; a dense forward pass is 2
 * × parameters FLOP a token; a ring all-reduce sends and receives 2 (n - 1) / n of its size a
 * device; a decode step reads every weight once. */
#pragma once
#include "lib/cost/profile.h"

#define PLAN_MAX_NUMBERS 160
#define PLAN_MAX_ADVICE  24

struct plan_input {
    const struct model_profile *model;
    const struct device_profile *device;
    uint32_t prompt_tokens, output_tokens, batch;
    double kv_element_bytes; /* 2 = 16 bits, 1 = FP8 */
    double requests_per_s;   /* expected load; 0: unknown */
    double ttft_s, tpot_s;   /* targets; 0: none */
    uint32_t tensor;         /* a layout to judge; 0: choose */
    bool disaggregate;       /* with `tensor`: the layout to judge has separate pools */
};

struct plan_number {
    const char *section;
    char id[48], label[96], formula[224], text[32]; /* text: the value with its unit */
    double value;
    const char *unit; /* of value: "bytes", "s", "tokens", "requests", "" */
};

enum advice_level { ADVICE_NOTE, ADVICE_WARNING };
struct plan_advice {
    enum advice_level level;
    char id[32], text[320];
};

struct plan_layout { /* what is advised (or was asked for) */
    uint32_t tensor, prefill_groups, decode_groups, unified_groups;
    bool disaggregate;
    double ttft_s, tpot_s; /* predicted, no queue */
};

struct plan {
    struct plan_number numbers[PLAN_MAX_NUMBERS];
    size_t n_numbers;
    struct plan_advice advice[PLAN_MAX_ADVICE];
    size_t n_advice;
    struct plan_layout layout;
};

/* Fills *out. -EINVAL when the figures make no sense (zero layers, no memory, …), with what is
 * missing. */
int plan_compute(const struct plan_input *in, struct plan *out, struct err *e) MUST_CHECK;
/* "290 ms", "22.6 s" */
const char *plan_seconds(double s, char out[32]);
const struct plan_number *plan_find(const struct plan *p, const char *id);
