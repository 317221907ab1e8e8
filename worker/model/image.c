/* Checking, attaching and loading images. */
#include "worker/model/image.h"
#include "worker/model/config.h"
#include "worker/model/plan.h"
#include "worker/model/slots.h"

#include <errno.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <sys/mman.h>

void image_head_sha(const struct image_header *h, const struct image_entry *entries,
                    uint8_t out[32])
{
    size_t config = sizeof h->config, dir = h->n_entries * sizeof *entries, shard = sizeof h->shard;
    uint8_t *all = xmalloc(shard + config + dir);
    memcpy(all, &h->shard, shard);
    memcpy(all + shard, &h->config, config);
    memcpy(all + shard + config, entries, dir);
    SHA256(all, shard + config + dir, out);
    free(all);
}

/* Four independent multiply-add chains over 8-byte words: memory speed. */
uint64_t image_checksum(const uint8_t *image, uint64_t from, uint64_t to)
{
    uint64_t s[4] = {1, 2, 3, 4};
    for (uint64_t at = from; at < to; at += 32) /* both ends are whole pages */
        for (int i = 0; i < 4; i++) {
            uint64_t w;
            memcpy(&w, image + at + 8u * (unsigned)i, 8);
            s[i] = (s[i] ^ w) * 0x9e3779b97f4a7c15ull;
            s[i] ^= s[i] >> 29;
        }
    return ((s[0] * 31 + s[1]) * 31 + s[2]) * 31 + s[3];
}

static const struct image_entry *entries_of(const void *image)
{
    return (const struct image_entry *)(const void *)((const uint8_t *)image + IMAGE_ENTRIES_AT);
}

uint64_t model_image_checksum(const void *image)
{
    return ((const struct image_header *)image)->checksum;
}

uint64_t model_image_checksum_now(const void *image)
{
    const struct image_header *h = image;
    return image_checksum(image, image_head_bytes(h->n_entries), h->bytes);
}

static int check_entry(const struct image_header *h, const struct model_part *part, uint32_t i,
                       const struct image_entry *en, struct err *e)
{
    struct slot_spec s;
    shard_spec(&h->config, part, i, &s);
    if (!en->bytes) {
        if (s.wanted && !s.optional)
            return err_set(e, EINVAL, "the weight image lacks %s", s.name);
        return 0;
    }
    if (en->rows != slot_rows(&s) || en->cols != s.cols || (en->form == 0) != s.vector ||
        (en->form && !mat_form_ok(en->form)))
        return err_set(e, EINVAL, "the weight image's %s has another shape", s.name);
    uint64_t need =
        en->form ? mat_bytes(en->form, en->rows, en->cols) : (uint64_t)en->cols * sizeof(float);
    if (en->bytes < need || en->offset % 64 || en->offset < image_head_bytes(h->n_entries) ||
        en->offset > h->bytes || en->bytes > h->bytes - en->offset)
        return err_set(e, EINVAL, "the weight image's %s lies outside of it", s.name);
    return 0;
}

int model_image_check(const void *image, uint64_t bytes, struct err *e)
{
    const struct image_header *h = image;
    if ((uintptr_t)image % 64)
        return err_set(e, EINVAL, "the weight image is not 64-byte aligned");
    if (bytes < IMAGE_ENTRIES_AT || memcmp(h->magic, IMAGE_MAGIC, sizeof h->magic) != 0)
        return err_set(e, EINVAL, "not a complete weight image");
    if (h->version != IMAGE_VERSION || strncmp(h->form, IMAGE_FORM, sizeof h->form) != 0)
        return err_set(e, EINVAL, "a weight image of version %u, this program reads version %u",
                       h->version, IMAGE_VERSION);
    if (h->bytes > bytes || h->bytes % 4096)
        return err_set(e, EINVAL, "the weight image is truncated: %llu bytes of %llu",
                       (unsigned long long)bytes, (unsigned long long)h->bytes);
    struct model_part part;
    int rc = config_check(&h->config, e);
    rc = rc ? rc : model_shard_check(&h->config, &h->shard, e);
    if (rc < 0)
        return rc;
    model_part_of(&h->config, &h->shard, &part);
    if (h->n_entries != slots_count(&h->config) || image_head_bytes(h->n_entries) > h->bytes)
        return err_set(e, EINVAL, "the weight image's directory is damaged");
    uint8_t sha[32];
    image_head_sha(h, entries_of(image), sha);
    if (memcmp(sha, h->head_sha, sizeof sha) != 0)
        return err_set(e, EINVAL, "the weight image's header is damaged");
    for (uint32_t i = 0; i < h->n_entries; i++)
        if ((rc = check_entry(h, &part, i, &entries_of(image)[i], e)) < 0)
            return rc;
    return 0;
}

int model_attach(const void *image, uint64_t bytes, const char *isa, struct model **out,
                 struct err *e)
{
    const struct kernel_ops *ops;
    int rc = cpu_ops(isa, &ops, e);
    if (rc < 0 || (rc = model_image_check(image, bytes, e)) < 0)
        return rc;
    if ((uintptr_t)image % 4096 ==
        0) /* shared memory too, where the machine's shmem_enabled allows it */
        (void)madvise((void *)(uintptr_t)image, bytes, MADV_HUGEPAGE);
    struct model *m = xcalloc(1, sizeof *m);
    m->config = ((const struct image_header *)image)->config;
    m->shard = ((const struct image_header *)image)->shard;
    model_part_of(&m->config, &m->shard, &m->part);
    m->ops = ops;
    m->image = image;
    m->entries = entries_of(image);
    *out = m;
    return 0;
}

int model_shard_load(const char *path, const char *isa, const struct model_shard *s,
                     struct model **out, struct err *e)
{
    uint64_t bytes;
    int rc = model_shard_bytes(path, isa, s, &bytes, e);
    if (rc < 0)
        return rc;
    bytes = (bytes + (2u << 20) - 1) & ~(uint64_t)((2u << 20) - 1);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                   -1, 0);
    if (p == MAP_FAILED)
        return err_set(e, ENOMEM, "no memory for %llu MiB of weights",
                       (unsigned long long)bytes >> 20);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    rc = model_shard_fill(path, isa, s, p, bytes, e);
    if (rc == 0)
        rc = model_attach(p, bytes, isa, out, e);
    if (rc < 0) {
        munmap(p, bytes);
        return rc;
    }
    (*out)->owned = p;
    (*out)->owned_bytes = bytes;
    return 0;
}

int model_load(const char *path, const char *isa, struct model **out, struct err *e)
{
    return model_shard_load(path, isa, NULL, out, e);
}

void model_free(struct model *m)
{
    if (!m)
        return;
    if (m->owned)
        munmap(m->owned, m->owned_bytes);
    free(m);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

const struct model_shard *model_shard_of(const struct model *m)
{
    return &m->shard;
}

const struct model_part *model_part(const struct model *m)
{
    return &m->part;
}

uint64_t model_shard_weight_bytes(const struct model *m)
{
    const struct image_header *h = (const struct image_header *)(const void *)m->image;
    return h->bytes - image_head_bytes(h->n_entries);
}

const char *model_isa(const struct model *m)
{
    return m->ops->name;
}

const struct image_entry *image_global(const struct model *m, enum image_slot slot)
{
    return &m->entries[slot];
}

const struct image_entry *image_layer(const struct model *m, uint32_t layer,
                                      enum image_layer_slot slot)
{
    return &m->entries[IMAGE_GLOBAL_SLOTS + layer * IMAGE_LAYER_SLOTS + slot];
}

struct mat image_mat(const struct model *m, const struct image_entry *en)
{
    return (struct mat){
        .form = en->form, .rows = en->rows, .cols = en->cols, .data = m->image + en->offset};
}

const float *image_vec(const struct model *m, const struct image_entry *en)
{
    return en->bytes ? (const float *)(const void *)(m->image + en->offset) : NULL;
}
