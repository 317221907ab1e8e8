#include "lib/llm/gguf.h"
#include "lib/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bounds on what a file may claim; real ones stay far below (262,144 tokens and 500,000 merges are
 * about 15 MB). */
#define META_BYTES_MAX (512ull << 20)
#define KEY_BYTES_MAX  65535u
#define NAME_BYTES_MAX 256u
#define KVS_MAX        65536u
#define TENSORS_MAX    65536u
#define ARRAY_MAX      (16u << 20) /* elements that a lookup decodes */
#define READ_CHUNK     (1u << 20)

enum value_type {
    V_U8,
    V_I8,
    V_U16,
    V_I16,
    V_U32,
    V_I32,
    V_F32,
    V_BOOL,
    V_STR,
    V_ARR,
    V_U64,
    V_I64,
    V_F64,
};
static const uint8_t value_bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct kv {
    size_t key, key_n; /* offset in meta */
    uint32_t type;     /* of the value, or of the elements of an array */
    bool array;
    uint64_t n;      /* elements, 1 when not an array */
    size_t at, size; /* of the value's bytes in meta */
    void *decoded;   /* struct str *, int64_t * or float * */
    char decoded_kind;
};

struct gguf {
    int fd;
    char *name;
    uint64_t file_bytes;
    uint8_t *meta; /* the start of the file, as far as it was needed */
    size_t have, cap, pos;
    struct kv *kvs;
    size_t n_kvs;
    struct gguf_tensor *tensors;
    size_t n_tensors;
};

static const struct {
    uint32_t type, elements, bytes;
    const char *name;
} types[] = {
    {GGUF_F32, 1, 4, "F32"},       {GGUF_F16, 1, 2, "F16"},       {GGUF_Q4_0, 32, 18, "Q4_0"},
    {GGUF_Q4_1, 32, 20, "Q4_1"},   {GGUF_Q5_0, 32, 22, "Q5_0"},   {GGUF_Q5_1, 32, 24, "Q5_1"},
    {GGUF_Q8_0, 32, 34, "Q8_0"},   {GGUF_Q4_K, 256, 144, "Q4_K"}, {GGUF_Q5_K, 256, 176, "Q5_K"},
    {GGUF_Q6_K, 256, 210, "Q6_K"}, {GGUF_BF16, 1, 2, "BF16"},
};

bool gguf_type_block(uint32_t type, uint32_t *elements, uint32_t *bytes)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type) {
            *elements = types[i].elements;
            *bytes = types[i].bytes;
            return true;
        }
    return false;
}

const char *gguf_type_name(uint32_t type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].type == type)
            return types[i].name;
    return "unknown";
}

/* ---- reading metadata ---- */

/* Makes `n` more bytes after pos readable in meta. */
static int need(struct gguf *g, uint64_t n, struct err *e)
{
    if (n <= g->have - g->pos)
        return 0;
    if (n > g->file_bytes - g->pos)
        return err_set(e, EINVAL, "%s: truncated: metadata goes past the end of the file", g->name);
    uint64_t want = g->pos + n;
    if (want > META_BYTES_MAX)
        return err_set(e, EINVAL, "%s: more than %llu MiB of metadata", g->name,
                       META_BYTES_MAX >> 20);
    uint64_t to = want + READ_CHUNK + want / 2;
    if (to > g->file_bytes)
        to = g->file_bytes;
    if (to > g->cap) {
        void *p = realloc(g->meta, (size_t)to);
        if (!p)
            return err_set(e, ENOMEM, "%s: no memory for metadata", g->name);
        g->meta = p;
        g->cap = (size_t)to;
    }
    int rc = file_read_at(g->fd, g->meta + g->have, (size_t)to - g->have, g->have);
    if (rc < 0)
        return err_set(e, EIO, "%s: can't read: %s", g->name, strerror(-rc));
    g->have = (size_t)to;
    return 0;
}

static int take(struct gguf *g, void *out, size_t n, struct err *e)
{
    int rc = need(g, n, e);
    if (rc < 0)
        return rc;
    memcpy(out, g->meta + g->pos, n);
    g->pos += n;
    return 0;
}

static int take_u32(struct gguf *g, uint32_t *out, struct err *e)
{
    return take(g, out, 4, e);
}

static int take_u64(struct gguf *g, uint64_t *out, struct err *e)
{
    return take(g, out, 8, e);
}

static int skip(struct gguf *g, uint64_t n, struct err *e)
{
    int rc = need(g, n, e);
    if (rc == 0)
        g->pos += (size_t)n;
    return rc;
}

static int take_str(struct gguf *g, uint64_t max, const char *what, size_t *at, size_t *n,
                    struct err *e)
{
    uint64_t len;
    int rc = take_u64(g, &len, e);
    if (rc < 0)
        return rc;
    if (len > max)
        return err_set(e, EINVAL, "%s: a %s of %llu bytes", g->name, what, (unsigned long long)len);
    *at = g->pos;
    *n = (size_t)len;
    return skip(g, len, e);
}

static int skip_values(struct gguf *g, uint32_t type, uint64_t n, struct err *e)
{
    if (type == V_STR) {
        if (n > (g->file_bytes - g->pos) / 8)
            return err_set(e, EINVAL, "%s: an array of %llu strings does not fit in the file",
                           g->name, (unsigned long long)n);
        for (uint64_t i = 0; i < n; i++) {
            size_t at, len;
            int rc = take_str(g, META_BYTES_MAX, "string", &at, &len, e);
            if (rc < 0)
                return rc;
        }
        return 0;
    }
    if (type >= sizeof value_bytes || value_bytes[type] == 0)
        return err_set(e, EINVAL, "%s: unknown metadata type %u", g->name, type);
    if (n > (g->file_bytes - g->pos) / value_bytes[type])
        return err_set(e, EINVAL, "%s: an array of %llu values does not fit in the file", g->name,
                       (unsigned long long)n);
    return skip(g, n * value_bytes[type], e);
}

static int read_kv(struct gguf *g, struct kv *kv, struct err *e)
{
    int rc = take_str(g, KEY_BYTES_MAX, "key", &kv->key, &kv->key_n, e);
    if (rc < 0 || (rc = take_u32(g, &kv->type, e)) < 0)
        return rc;
    kv->n = 1;
    if (kv->type == V_ARR) {
        kv->array = true;
        if ((rc = take_u32(g, &kv->type, e)) < 0 || (rc = take_u64(g, &kv->n, e)) < 0)
            return rc;
    }
    kv->at = g->pos;
    rc = skip_values(g, kv->type, kv->n, e);
    kv->size = g->pos - kv->at;
    return rc;
}

static int tensor_size(struct gguf *g, struct gguf_tensor *t, struct err *e)
{
    uint64_t n = 1;
    for (int i = 0; i < 4; i++) {
        if (t->ne[i] == 0 || t->ne[i] > (1ull << 40) || n > (1ull << 50) / t->ne[i])
            return err_set(e, EINVAL, "%s: tensor " STR_FMT " has an impossible shape", g->name,
                           STR_ARG(t->name));
        n *= t->ne[i];
    }
    uint32_t block, bytes;
    if (!gguf_type_block(t->type, &block, &bytes))
        return 0; /* refused where the tensor is needed, with its name */
    if (t->ne[0] % block)
        return err_set(e, EINVAL, "%s: tensor " STR_FMT ": rows of %llu are not whole blocks of %s",
                       g->name, STR_ARG(t->name), (unsigned long long)t->ne[0],
                       gguf_type_name(t->type));
    t->bytes = n / block * bytes;
    return 0;
}

/* name.p holds an offset in meta until all metadata is in memory. */
static int read_tensor(struct gguf *g, struct gguf_tensor *t, struct err *e)
{
    size_t at;
    int rc = take_str(g, NAME_BYTES_MAX, "tensor name", &at, &t->name.n, e);
    if (rc < 0 || (rc = take_u32(g, &t->n_dims, e)) < 0)
        return rc;
    t->name.p = (const char *)g->meta + at;
    if (t->n_dims < 1 || t->n_dims > 4)
        return err_set(e, EINVAL, "%s: tensor " STR_FMT " has %u dimensions", g->name,
                       STR_ARG(t->name), t->n_dims);
    for (uint32_t i = 0; i < 4; i++)
        t->ne[i] = 1;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if ((rc = take_u64(g, &t->ne[i], e)) < 0)
            return rc;
    if ((rc = take_u32(g, &t->type, e)) < 0 || (rc = take_u64(g, &t->offset, e)) < 0)
        return rc;
    t->name.p = (const char *)g->meta + at; /* meta may have moved */
    rc = tensor_size(g, t, e);
    t->name.p = (const char *)at;
    return rc;
}

static int read_header(struct gguf *g, uint64_t *n_tensors, uint64_t *n_kvs, struct err *e)
{
    char magic[4];
    uint32_t version;
    int rc = take(g, magic, 4, e);
    if (rc < 0)
        return rc;
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(e, EINVAL, "%s: not a GGUF file", g->name);
    if ((rc = take_u32(g, &version, e)) < 0)
        return rc;
    if (version != 2 && version != 3)
        return err_set(e, EINVAL, "%s: GGUF version %u; versions 2 and 3 (little-endian) are read",
                       g->name, version);
    if ((rc = take_u64(g, n_tensors, e)) < 0 || (rc = take_u64(g, n_kvs, e)) < 0)
        return rc;
    uint64_t left = g->file_bytes - g->pos;
    if (*n_kvs > KVS_MAX || *n_kvs > left / 13)
        return err_set(
            e, EINVAL,
            "%s: claims %llu metadata keys, more than %llu bytes can hold: is the file cut short?",
            g->name, (unsigned long long)*n_kvs, (unsigned long long)g->file_bytes);
    if (*n_tensors > TENSORS_MAX || *n_tensors > left / 32)
        return err_set(
            e, EINVAL,
            "%s: claims %llu tensors, more than %llu bytes can hold: is the file cut short?",
            g->name, (unsigned long long)*n_tensors, (unsigned long long)g->file_bytes);
    return 0;
}

static const char *key_at(const struct gguf *g, const struct kv *kv)
{
    return (const char *)g->meta + kv->key;
}

static const struct kv *find(const struct gguf *g, const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < g->n_kvs; i++)
        if (g->kvs[i].key_n == n && memcmp(key_at(g, &g->kvs[i]), key, n) == 0)
            return &g->kvs[i];
    return NULL;
}

/* Offsets become absolute; every tensor lies inside the file. */
static int place_tensors(struct gguf *g, struct err *e)
{
    uint64_t align = 32;
    int rc = gguf_u64(g, "general.alignment", &align);
    if (rc == -EINVAL || align < 8 || align > 65536 || (align & (align - 1)))
        return err_set(e, EINVAL, "%s: general.alignment is not a power of two from 8 to 65536",
                       g->name);
    uint64_t start = (g->pos + align - 1) & ~(align - 1);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        t->name.p = (const char *)g->meta + (size_t)t->name.p;
        if (start > g->file_bytes || t->offset > g->file_bytes - start ||
            t->bytes > g->file_bytes - start - t->offset)
            return err_set(e, EINVAL, "%s: truncated: tensor " STR_FMT " lies outside the file",
                           g->name, STR_ARG(t->name));
        if (t->offset % align)
            return err_set(e, EINVAL, "%s: tensor " STR_FMT " is not aligned", g->name,
                           STR_ARG(t->name));
        t->offset += start;
    }
    return 0;
}

static int cmp_name(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    size_t n = (*x)->name.n < (*y)->name.n ? (*x)->name.n : (*y)->name.n;
    int c = memcmp((*x)->name.p, (*y)->name.p, n);
    return c ? c : (*x)->name.n < (*y)->name.n ? -1 : (*x)->name.n > (*y)->name.n;
}

static int check_unique(struct gguf *g, struct err *e)
{
    if (g->n_tensors < 2)
        return 0;
    const struct gguf_tensor **v = malloc(g->n_tensors * sizeof *v);
    if (!v)
        return err_set(e, ENOMEM, "%s: no memory for %zu tensors", g->name, g->n_tensors);
    for (size_t i = 0; i < g->n_tensors; i++)
        v[i] = &g->tensors[i];
    qsort(v, g->n_tensors, sizeof *v, cmp_name);
    int rc = 0;
    for (size_t i = 1; i < g->n_tensors && rc == 0; i++)
        if (cmp_name(&v[i - 1], &v[i]) == 0)
            rc = err_set(e, EINVAL, "%s: tensor " STR_FMT " is there twice", g->name,
                         STR_ARG(v[i]->name));
    free(v);
    return rc;
}

static int read_all(struct gguf *g, struct err *e)
{
    uint64_t n_tensors = 0, n_kvs = 0;
    int rc = read_header(g, &n_tensors, &n_kvs, e);
    if (rc < 0)
        return rc;
    g->kvs = calloc(n_kvs + 1, sizeof *g->kvs);
    g->tensors = calloc(n_tensors + 1, sizeof *g->tensors);
    if (!g->kvs || !g->tensors)
        return err_set(e, ENOMEM, "%s: no memory for metadata", g->name);
    for (; g->n_kvs < n_kvs; g->n_kvs++)
        if ((rc = read_kv(g, &g->kvs[g->n_kvs], e)) < 0)
            return rc;
    for (; g->n_tensors < n_tensors; g->n_tensors++)
        if ((rc = read_tensor(g, &g->tensors[g->n_tensors], e)) < 0)
            return rc;
    rc = place_tensors(g, e);
    return rc < 0 ? rc : check_unique(g, e);
}

int gguf_open_fd(int fd, const char *name, struct gguf **out, struct err *e)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return err_set(e, EINVAL, "%s: not a regular file", name);
    }
    struct gguf *g = xcalloc(1, sizeof *g);
    g->fd = fd;
    g->name = xstrdup(name);
    g->file_bytes = (uint64_t)st.st_size;
    int rc = read_all(g, e);
    if (rc < 0) {
        gguf_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

int gguf_open(const char *path, struct gguf **out, struct err *e)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(e, errno, "can't open %s: %s", path, strerror(errno));
    return gguf_open_fd(fd, path, out, e);
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    for (size_t i = 0; g->kvs && i < g->n_kvs; i++)
        free(g->kvs[i].decoded);
    free(g->kvs);
    free(g->tensors);
    free(g->meta);
    free(g->name);
    close(g->fd);
    free(g);
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    return g->file_bytes;
}

/* ---- typed values ---- */

static bool is_int(uint32_t type)
{
    return type <= V_I32 || type == V_BOOL || type == V_U64 || type == V_I64;
}

/* The i-th element as a signed integer; a u64 past INT64_MAX gives -1 with *ok false. */
static int64_t int_at(const uint8_t *p, uint32_t type, bool *ok)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } v = {0};
    memcpy(&v, p, value_bytes[type]);
    *ok = true;
    switch (type) {
    case V_U8:
    case V_BOOL: return v.u8;
    case V_I8: return v.i8;
    case V_U16: return v.u16;
    case V_I16: return v.i16;
    case V_U32: return v.u32;
    case V_I32: return v.i32;
    case V_I64: return v.i64;
    default: break;
    }
    *ok = v.u64 <= INT64_MAX;
    return *ok ? (int64_t)v.u64 : -1;
}

int gguf_u64(const struct gguf *g, const char *key, uint64_t *out)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return -ENOENT;
    if (kv->array || !is_int(kv->type) || kv->type == V_BOOL)
        return -EINVAL;
    bool ok;
    int64_t v = int_at(g->meta + kv->at, kv->type, &ok);
    if (!ok || v < 0)
        return -EINVAL;
    *out = (uint64_t)v;
    return 0;
}

static double float_at(const uint8_t *p, uint32_t type)
{
    float f;
    double d;
    if (type == V_F32) {
        memcpy(&f, p, sizeof f);
        return (double)f;
    }
    memcpy(&d, p, sizeof d);
    return d;
}

int gguf_f64(const struct gguf *g, const char *key, double *out)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return -ENOENT;
    if (kv->array || kv->type == V_BOOL)
        return -EINVAL;
    if (kv->type == V_F32 || kv->type == V_F64) {
        *out = float_at(g->meta + kv->at, kv->type);
        return 0;
    }
    bool ok = is_int(kv->type);
    if (!ok)
        return -EINVAL;
    int64_t v = int_at(g->meta + kv->at, kv->type, &ok);
    if (!ok)
        return -EINVAL;
    *out = (double)v;
    return 0;
}

int gguf_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return -ENOENT;
    if (kv->array || kv->type != V_BOOL)
        return -EINVAL;
    *out = g->meta[kv->at] != 0;
    return 0;
}

int gguf_str(const struct gguf *g, const char *key, struct str *out)
{
    const struct kv *kv = find(g, key);
    if (!kv)
        return -ENOENT;
    if (kv->array || kv->type != V_STR)
        return -EINVAL;
    *out = (struct str){(const char *)g->meta + kv->at + 8, kv->size - 8};
    return 0;
}

static int find_array(struct gguf *g, const char *key, char kind, size_t element, struct kv **out)
{
    struct kv *kv = (struct kv *)(uintptr_t)find(g, key);
    if (!kv)
        return -ENOENT;
    bool fits = kind == 's'   ? kv->type == V_STR
                : kind == 'i' ? is_int(kv->type)
                              : kv->type == V_F32 || kv->type == V_F64;
    if (!kv->array || !fits || kv->n > ARRAY_MAX)
        return -EINVAL;
    *out = kv;
    if (kv->decoded)
        return 0;
    kv->decoded = malloc(kv->n ? (size_t)kv->n * element : 1);
    if (!kv->decoded)
        return -ENOMEM;
    kv->decoded_kind = kind;
    return 1; /* to be filled */
}

int gguf_strs(struct gguf *g, const char *key, const struct str **out, size_t *n)
{
    struct kv *kv = NULL;
    int rc = find_array(g, key, 's', sizeof(struct str), &kv);
    if (rc < 0)
        return rc;
    struct str *v = kv->decoded;
    const uint8_t *p = g->meta + kv->at;
    for (uint64_t i = 0; rc == 1 && i < kv->n; i++) {
        uint64_t len;
        memcpy(&len, p, 8);
        v[i] = (struct str){(const char *)p + 8, (size_t)len};
        p += 8 + len;
    }
    *out = v;
    *n = (size_t)kv->n;
    return 0;
}

int gguf_i64s(struct gguf *g, const char *key, const int64_t **out, size_t *n)
{
    struct kv *kv = NULL;
    int rc = find_array(g, key, 'i', sizeof(int64_t), &kv);
    if (rc < 0)
        return rc;
    int64_t *v = kv->decoded;
    bool ok;
    for (uint64_t i = 0; rc == 1 && i < kv->n; i++)
        v[i] = int_at(g->meta + kv->at + i * value_bytes[kv->type], kv->type, &ok);
    *out = v;
    *n = (size_t)kv->n;
    return 0;
}

int gguf_f32s(struct gguf *g, const char *key, const float **out, size_t *n)
{
    struct kv *kv = NULL;
    int rc = find_array(g, key, 'f', sizeof(float), &kv);
    if (rc < 0)
        return rc;
    float *v = kv->decoded;
    for (uint64_t i = 0; rc == 1 && i < kv->n; i++)
        v[i] = (float)float_at(g->meta + kv->at + i * value_bytes[kv->type], kv->type);
    *out = v;
    *n = (size_t)kv->n;
    return 0;
}

/* ---- tensors ---- */

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    ASSERT(i < g->n_tensors);
    return &g->tensors[i];
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        if (str_eq_c(g->tensors[i].name, name))
            return &g->tensors[i];
    return NULL;
}

int gguf_read(const struct gguf *g, const struct gguf_tensor *t, uint64_t from, void *out, size_t n,
              struct err *e)
{
    if (from > t->bytes || n > t->bytes - from)
        return err_set(e, EINVAL, "%s: read past the end of tensor " STR_FMT, g->name,
                       STR_ARG(t->name));
    int rc = file_read_at(g->fd, out, n, t->offset + from);
    if (rc == -ENODATA)
        return err_set(e, EIO, "%s: the file became shorter while it was read", g->name);
    if (rc < 0)
        return err_set(e, EIO, "%s: can't read tensor " STR_FMT ": %s", g->name, STR_ARG(t->name),
                       strerror(-rc));
    return 0;
}
