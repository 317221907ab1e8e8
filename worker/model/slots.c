#include "worker/model/slots.h"

#include <stdio.h>

uint32_t slots_count(const struct model_config *c)
{
    return IMAGE_GLOBAL_SLOTS + c->n_layers * IMAGE_LAYER_SLOTS;
}

static struct slot_spec vec(uint32_t n)
{
    return (struct slot_spec){.vector = true, .wanted = true, .rows = 1, .cols = n, .parts = 1};
}

static struct slot_spec vec_if(bool wanted, uint32_t n, enum slot_cut cut)
{
    struct slot_spec s = vec(n);
    s.wanted = wanted;
    s.cut = cut;
    return s;
}

static struct slot_spec mat(uint32_t rows, uint32_t cols, enum slot_cut cut)
{
    return (struct slot_spec){.wanted = true, .rows = rows, .cols = cols, .cut = cut, .parts = 1};
}

static struct slot_spec mats(bool wanted, uint32_t parts, uint32_t rows, uint32_t cols,
                             enum slot_cut cut)
{
    struct slot_spec s = mat(rows, cols, cut);
    s.wanted = wanted;
    s.parts = parts;
    return s;
}

static void global_spec(const struct model_config *c, uint32_t slot, struct slot_spec *s)
{
    const char *name = "token_embd";
    switch (slot) {
    case SLOT_EMBED: *s = mat(c->vocab, c->d_model, CUT_VOCAB_ROWS); break;
    case SLOT_OUTPUT:
        *s = mat(c->vocab, c->d_model, CUT_VOCAB_ROWS);
        s->wanted = !c->tied;
        name = "output";
        break;
    case SLOT_OUT_NORM:
        *s = vec(c->d_model);
        name = "output_norm";
        break;
    default:
        *s = vec(c->rope_dims / 2);
        s->optional = true;
        name = "rope_freqs";
    }
    s->ends = slot != SLOT_ROPE_FACTORS;
    snprintf(s->name, sizeof s->name, "%s.weight", name);
}

/* The feed-forward part: dense, or shared and routed experts. */
static struct slot_spec ffn_shape(const struct model_config *c, uint32_t layer,
                                  enum image_layer_slot slot)
{
    const struct model_moe *m = &c->moe;
    bool moe = model_layer_has_experts(c, layer), fed = !moe || m->d_shared;
    uint32_t ff = moe ? m->d_shared : c->d_ff, d = c->d_model;
    switch (slot) {
    case SLOT_GATE:
    case SLOT_UP: return mats(fed, 1, ff, d, moe ? CUT_SHARED_ROWS : CUT_FF_ROWS);
    case SLOT_DOWN: return mats(fed, 1, d, ff, moe ? CUT_SHARED_COLS : CUT_FF_COLS);
    case SLOT_ROUTER: return mats(moe, 1, m->experts, d, CUT_NONE);
    case SLOT_ROUTER_BIAS: {
        struct slot_spec s = vec_if(moe && m->sigmoid, m->experts, CUT_NONE);
        s.optional = true;
        return s;
    }
    case SLOT_EXPERT_DOWN: return mats(moe, m->experts, d, m->d_expert, CUT_EXPERT_COLS);
    default: return mats(moe, m->experts, m->d_expert, d, CUT_EXPERT_ROWS);
    }
}

static struct slot_spec attention_shape(const struct model_config *c, enum image_layer_slot slot)
{
    const struct model_mla *m = &c->mla;
    uint32_t q = c->n_heads * slots_q_dim(c), kv = c->n_kv_heads * c->head_dim;
    uint32_t o = c->n_heads * slots_o_dim(c);
    switch (slot) {
    case SLOT_Q: return mat(q, m->q_rank ? m->q_rank : c->d_model, CUT_Q_ROWS);
    case SLOT_K:
    case SLOT_V: return mats(!m->rank, 1, kv, c->d_model, CUT_KV_ROWS);
    case SLOT_O: return mat(c->d_model, o, CUT_Q_COLS);
    case SLOT_Q_BIAS: return vec_if(c->qkv_bias, q, CUT_Q_COLS);
    case SLOT_K_BIAS:
    case SLOT_V_BIAS: return vec_if(c->qkv_bias, kv, CUT_KV_COLS);
    case SLOT_Q_A: return mats(m->q_rank != 0, 1, m->q_rank, c->d_model, CUT_NONE);
    case SLOT_Q_A_NORM: return vec_if(m->q_rank != 0, m->q_rank, CUT_NONE);
    case SLOT_KV_A: return mats(m->rank != 0, 1, c->head_dim, c->d_model, CUT_NONE);
    case SLOT_KV_A_NORM: return vec_if(m->rank != 0, m->rank, CUT_NONE);
    case SLOT_K_UP: return mats(m->rank != 0, c->n_heads, m->rank, m->nope, CUT_HEAD_PARTS);
    case SLOT_V_UP: return mats(m->rank != 0, c->n_heads, m->v, m->rank, CUT_HEAD_PARTS);
    default: return vec_if(c->qk_norm, c->head_dim, CUT_NONE); /* norms of Q and K */
    }
}

static struct slot_spec layer_shape(const struct model_config *c, uint32_t layer,
                                    enum image_layer_slot slot)
{
    switch (slot) {
    case SLOT_ATTN_NORM:
    case SLOT_FFN_NORM: return vec(c->d_model);
    case SLOT_POST_ATTN_NORM:
    case SLOT_POST_FFN_NORM: return vec_if(c->post_norm, c->d_model, CUT_NONE);
    case SLOT_GATE:
    case SLOT_UP:
    case SLOT_DOWN:
    case SLOT_ROUTER:
    case SLOT_ROUTER_BIAS:
    case SLOT_EXPERT_GATE:
    case SLOT_EXPERT_UP:
    case SLOT_EXPERT_DOWN: return ffn_shape(c, layer, slot);
    default: return attention_shape(c, slot);
    }
}

/* Names of a layer's slots in GGUF and in safetensors. A "*" is the expert's number. */
static const struct {
    const char *gguf, *hf;
} names[IMAGE_LAYER_SLOTS] = {
    [SLOT_ATTN_NORM] = {"attn_norm.weight", "input_layernorm.weight"},
    [SLOT_Q] = {"attn_q.weight", "self_attn.q_proj.weight"},
    [SLOT_K] = {"attn_k.weight", "self_attn.k_proj.weight"},
    [SLOT_V] = {"attn_v.weight", "self_attn.v_proj.weight"},
    [SLOT_Q_NORM] = {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    [SLOT_K_NORM] = {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    [SLOT_O] = {"attn_output.weight", "self_attn.o_proj.weight"},
    [SLOT_POST_ATTN_NORM] = {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    [SLOT_FFN_NORM] = {"ffn_norm.weight", "post_attention_layernorm.weight"},
    [SLOT_GATE] = {"ffn_gate.weight", "mlp.gate_proj.weight"},
    [SLOT_UP] = {"ffn_up.weight", "mlp.up_proj.weight"},
    [SLOT_DOWN] = {"ffn_down.weight", "mlp.down_proj.weight"},
    [SLOT_POST_FFN_NORM] = {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    [SLOT_Q_BIAS] = {"attn_q.bias", "self_attn.q_proj.bias"},
    [SLOT_K_BIAS] = {"attn_k.bias", "self_attn.k_proj.bias"},
    [SLOT_V_BIAS] = {"attn_v.bias", "self_attn.v_proj.bias"},
    [SLOT_Q_A] = {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    [SLOT_Q_A_NORM] = {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    [SLOT_KV_A] = {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    [SLOT_KV_A_NORM] = {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    [SLOT_K_UP] = {"attn_k_b.weight", "self_attn.kv_b_proj.weight"},
    [SLOT_V_UP] = {"attn_v_b.weight", "self_attn.kv_b_proj.weight"},
    [SLOT_ROUTER] = {"ffn_gate_inp.weight", "mlp.gate.weight"},
    [SLOT_ROUTER_BIAS] = {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    [SLOT_EXPERT_GATE] = {"ffn_gate_exps.weight", "mlp.experts.*.gate_proj.weight"},
    [SLOT_EXPERT_UP] = {"ffn_up_exps.weight", "mlp.experts.*.up_proj.weight"},
    [SLOT_EXPERT_DOWN] = {"ffn_down_exps.weight", "mlp.experts.*.down_proj.weight"},
};

void slots_spec(const struct model_config *c, uint32_t i, struct slot_spec *out)
{
    if (i < IMAGE_GLOBAL_SLOTS) {
        global_spec(c, i, out);
        return;
    }
    uint32_t layer = (i - IMAGE_GLOBAL_SLOTS) / IMAGE_LAYER_SLOTS;
    enum image_layer_slot slot = (i - IMAGE_GLOBAL_SLOTS) % IMAGE_LAYER_SLOTS;
    *out = layer_shape(c, layer, slot);
    snprintf(out->name, sizeof out->name, "blk.%u.%s", layer, names[slot].gguf);
}

/* ---- where they are read from ---- */

/* Names that differ between families. */
static const char *hf_name(const struct model_config *c, uint32_t layer, enum image_layer_slot slot,
                           uint32_t way)
{
    bool moe = model_layer_has_experts(c, layer);
    if (c->arch == MODEL_MIXTRAL) {
        static const char *const mixtral[] = {
            "block_sparse_moe.gate.weight", NULL, "block_sparse_moe.experts.*.w1.weight",
            "block_sparse_moe.experts.*.w3.weight", "block_sparse_moe.experts.*.w2.weight"};
        if (slot >= SLOT_ROUTER && slot <= SLOT_EXPERT_DOWN && way == 0)
            return mixtral[slot - SLOT_ROUTER];
    } else if (way > 0) {
        return NULL;
    }
    if (slot == SLOT_FFN_NORM && c->arch == MODEL_GEMMA3)
        return "pre_feedforward_layernorm.weight";
    if (slot == SLOT_Q && c->mla.q_rank)
        return "self_attn.q_b_proj.weight";
    if (moe && slot == SLOT_GATE)
        return "mlp.shared_experts.gate_proj.weight";
    if (moe && slot == SLOT_UP)
        return "mlp.shared_experts.up_proj.weight";
    if (moe && slot == SLOT_DOWN)
        return "mlp.shared_experts.down_proj.weight";
    return way < 2 ? names[slot].hf : NULL;
}

/* K_UP and V_UP of a head lie in one matrix of keys and values: nope rows, then v rows. */
static void from_kv_b(const struct model_config *c, enum image_layer_slot slot, uint32_t part,
                      struct slot_part *out)
{
    out->row0 = (uint64_t)part * (c->mla.nope + c->mla.v);
    if (slot == SLOT_K_UP)
        out->transposed = true;
    else
        out->row0 += c->mla.nope;
}

static bool hf_part(const struct model_config *c, uint32_t layer, enum image_layer_slot slot,
                    uint32_t part, uint32_t way, struct slot_part *out)
{
    const char *name = hf_name(c, layer, slot, way), *star = name ? strchr(name, '*') : NULL;
    if (!name)
        return false;
    if (star)
        snprintf(out->name, sizeof out->name, "model.layers.%u.%.*s%u%s", layer, (int)(star - name),
                 name, part, star + 1);
    else
        snprintf(out->name, sizeof out->name, "model.layers.%u.%s", layer, name);
    if (slot == SLOT_K_UP || slot == SLOT_V_UP)
        from_kv_b(c, slot, part, out);
    struct slot_spec s = layer_shape(c, layer, slot);
    out->plus_one = c->arch == MODEL_GEMMA3 && s.vector;
    return true;
}

static bool gguf_part(const struct model_config *c, uint32_t layer, enum image_layer_slot slot,
                      uint32_t part, uint32_t way, struct slot_part *out)
{
    bool up = slot == SLOT_K_UP || slot == SLOT_V_UP;
    bool shared = model_layer_has_experts(c, layer) &&
                  (slot == SLOT_GATE || slot == SLOT_UP || slot == SLOT_DOWN);
    static const char *const shexp[] = {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"};
    if (way > (up ? 1u : 0u))
        return false;
    struct slot_spec s = layer_shape(c, layer, slot);
    if (shared)
        snprintf(out->name, sizeof out->name, "blk.%u.%s.weight", layer, shexp[slot - SLOT_GATE]);
    else if (slot == SLOT_Q && c->mla.q_rank)
        snprintf(out->name, sizeof out->name, "blk.%u.attn_q_b.weight", layer);
    else
        snprintf(out->name, sizeof out->name, "blk.%u.%s", layer,
                 way ? "attn_kv_b.weight" : names[slot].gguf);
    out->row0 = (uint64_t)part * s.rows; /* stacked in one tensor */
    if (way)
        from_kv_b(c, slot, part, out);
    return true;
}

bool slots_part(const struct model_config *c, uint32_t i, uint32_t part, bool hf, uint32_t way,
                struct slot_part *out)
{
    static const char *const global[IMAGE_GLOBAL_SLOTS][2] = {
        [SLOT_EMBED] = {"token_embd.weight", "model.embed_tokens.weight"},
        [SLOT_OUTPUT] = {"output.weight", "lm_head.weight"},
        [SLOT_OUT_NORM] = {"output_norm.weight", "model.norm.weight"},
        [SLOT_ROPE_FACTORS] = {"rope_freqs.weight", NULL},
    };
    memset(out, 0, sizeof *out);
    if (i < IMAGE_GLOBAL_SLOTS) {
        if (way || !global[i][hf])
            return false;
        snprintf(out->name, sizeof out->name, "%s", global[i][hf]);
        out->plus_one = hf && c->arch == MODEL_GEMMA3 && i == SLOT_OUT_NORM;
        return true;
    }
    uint32_t layer = (i - IMAGE_GLOBAL_SLOTS) / IMAGE_LAYER_SLOTS;
    enum image_layer_slot slot = (i - IMAGE_GLOBAL_SLOTS) % IMAGE_LAYER_SLOTS;
    return hf ? hf_part(c, layer, slot, part, way, out) : gguf_part(c, layer, slot, part, way, out);
}
