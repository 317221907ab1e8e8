/* eplb.h: where to place experts and their replicas so that devices carry like loads (DeepSeek's
 * "EPLB": expert-parallel load balancer; https://github.com/deepseek-ai/EPLB describes the policy).
 *
 * Hierarchical, when the groups of experts divide evenly over the nodes: groups are packed onto
 * nodes, experts are replicated within each node, replicas are packed onto its devices; a token
 * then reaches few nodes. Global otherwise: replicas and packing regardless of groups. Ties go to
 * the first, sorting is stable: the same loads give the same placement everywhere.
 *
 * Pure; memory is the caller's or freed before return. Layers are independent.
 */
#pragma once
#include "lib/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define EPLB_EXPERTS_MAX  4096u
#define EPLB_PHYSICAL_MAX 16384u
#define EPLB_NONE         UINT32_MAX

struct eplb_shape {
    uint32_t experts;  /* logical, of a layer */
    uint32_t physical; /* places for them: experts + redundant */
    uint32_t groups;   /* of experts (1: none) */
    uint32_t nodes, devices;
};

/* -EINVAL: not divisible as the policy needs (physical by devices, devices by nodes, experts by
 * groups), fewer places than experts, or too large. */
int eplb_check(const struct eplb_shape *s, struct err *e) MUST_CHECK;

/* For each layer: expert_of [physical] names the logical expert of each place (a device has
 * physical / devices consecutive places); replica [physical] (may be NULL) counts up among those of
 * one expert; count [experts] (may be NULL) how many it has. `load` [layers, experts] is what each
 * expert was given (any unit, >= 0). */
int eplb_place(const struct eplb_shape *s, const float *load, uint32_t layers, uint32_t *expert_of,
               uint32_t *replica, uint32_t *count, struct err *e) MUST_CHECK;

/* places [experts, width] of each expert, the rest EPLB_NONE; from one layer's expert_of. */
void eplb_places(const struct eplb_shape *s, const uint32_t *expert_of, uint32_t *places,
                 uint32_t width);

/* The greatest device's load over the mean, when an expert's load is split evenly over its
 * replicas; 1 is perfect, and what no load at all gives. */
double eplb_imbalance(const struct eplb_shape *s, const float *load, const uint32_t *expert_of);
/* The placement before any load is known: experts in order, then redundant ones i % experts. */
void eplb_initial(const struct eplb_shape *s, uint32_t *expert_of);
