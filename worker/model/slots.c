#include "worker/model/slots.h"

#include <stdio.h>

uint32_t slots_count(const struct model_config *c)
{
    return IMAGE_GLOBAL_SLOTS + c->n_layers * IMAGE_LAYER_SLOTS;
}

static struct slot_spec vec(uint32_t n)
{
    return (struct slot_spec){.vector = true, .wanted = true, .rows = 1, .cols = n};
}

static struct slot_spec mat(uint32_t rows, uint32_t cols, enum slot_cut cut)
{
    return (struct slot_spec){.wanted = true, .rows = rows, .cols = cols, .cut = cut};
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

static struct slot_spec layer_shape(const struct model_config *c, enum image_layer_slot slot)
{
    uint32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    struct slot_spec s;
    switch (slot) {
    case SLOT_Q: return mat(q, c->d_model, CUT_Q_ROWS);
    case SLOT_K:
    case SLOT_V: return mat(kv, c->d_model, CUT_KV_ROWS);
    case SLOT_O: return mat(c->d_model, q, CUT_Q_COLS);
    case SLOT_GATE:
    case SLOT_UP: return mat(c->d_ff, c->d_model, CUT_FF_ROWS);
    case SLOT_DOWN: return mat(c->d_model, c->d_ff, CUT_FF_COLS);
    case SLOT_Q_NORM:
    case SLOT_K_NORM:
        s = vec(c->head_dim);
        s.wanted = c->qk_norm;
        return s;
    case SLOT_POST_ATTN_NORM:
    case SLOT_POST_FFN_NORM:
        s = vec(c->d_model);
        s.wanted = c->post_norm;
        return s;
    default: return vec(c->d_model);
    }
}

void slots_spec(const struct model_config *c, uint32_t i, struct slot_spec *out)
{
    static const char *const names[IMAGE_LAYER_SLOTS] = {
        [SLOT_ATTN_NORM] = "attn_norm",
        [SLOT_Q] = "attn_q",
        [SLOT_K] = "attn_k",
        [SLOT_V] = "attn_v",
        [SLOT_Q_NORM] = "attn_q_norm",
        [SLOT_K_NORM] = "attn_k_norm",
        [SLOT_O] = "attn_output",
        [SLOT_POST_ATTN_NORM] = "post_attention_norm",
        [SLOT_FFN_NORM] = "ffn_norm",
        [SLOT_GATE] = "ffn_gate",
        [SLOT_UP] = "ffn_up",
        [SLOT_DOWN] = "ffn_down",
        [SLOT_POST_FFN_NORM] = "post_ffw_norm",
    };
    if (i < IMAGE_GLOBAL_SLOTS) {
        global_spec(c, i, out);
        return;
    }
    uint32_t layer = (i - IMAGE_GLOBAL_SLOTS) / IMAGE_LAYER_SLOTS;
    enum image_layer_slot slot = (i - IMAGE_GLOBAL_SLOTS) % IMAGE_LAYER_SLOTS;
    *out = layer_shape(c, slot);
    snprintf(out->name, sizeof out->name, "blk.%u.%s.weight", layer, names[slot]);
}
