#include "lib/llm/safetensors.h"
#include "lib/base/file.h"
#include "lib/json/json.h"
#include "lib/json/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bounds on what a file may claim. The format allows headers of 100 MB; the largest real ones are
 * below 10 MB. */
#define HEADER_BYTES_MAX (100u * 1000 * 1000)
#define INDEX_BYTES_MAX  (64u << 20)
#define TENSORS_MAX      (1u << 20)
#define NAME_BYTES_MAX   1024u
#define INDEX_FILE       "model.safetensors.index.json"

struct shard {
    char *path;
    int fd;
    uint64_t bytes, data_at;
    char *header;       /* tensors' names point into it */
    struct arena names; /* ... or here, when they hold escapes */
};

struct safetensors {
    struct shard *shards;
    uint32_t n_shards;
    struct safetensors_tensor *tensors;
    size_t n, cap;
};

static const struct {
    const char *name;
    uint32_t bits;
} types[ST_TYPES] = {
    [ST_BOOL] = {"BOOL", 8},       [ST_U8] = {"U8", 8},           [ST_I8] = {"I8", 8},
    [ST_F8_E4M3] = {"F8_E4M3", 8}, [ST_F8_E5M2] = {"F8_E5M2", 8}, [ST_F8_E8M0] = {"F8_E8M0", 8},
    [ST_I16] = {"I16", 16},        [ST_U16] = {"U16", 16},        [ST_F16] = {"F16", 16},
    [ST_BF16] = {"BF16", 16},      [ST_I32] = {"I32", 32},        [ST_U32] = {"U32", 32},
    [ST_F32] = {"F32", 32},        [ST_I64] = {"I64", 64},        [ST_U64] = {"U64", 64},
    [ST_F64] = {"F64", 64},        [ST_C64] = {"C64", 64},        [ST_F4] = {"F4", 4},
};

const char *safetensors_type_name(enum safetensors_type t)
{
    return t < ST_TYPES ? types[t].name : "unknown";
}

uint32_t safetensors_type_bits(enum safetensors_type t)
{
    return t < ST_TYPES ? types[t].bits : 0;
}

/* ---- one file's header ---- */

struct header {
    struct safetensors *st;
    struct shard *shard;
    uint32_t number; /* of the shard */
    struct scan scan;
    struct err *e;
};

static int bad(const struct header *h, struct str name, const char *why)
{
    return err_set(h->e, EINVAL, "%s: tensor \"" STR_FMT "\" %s", h->shard->path,
                   (int)(name.n < 100 ? name.n : 100), name.p, why);
}

static int bad_json(const struct header *h)
{
    if (h->scan.why)
        (void)scan_why(&h->scan, h->e);
    else
        (void)err_set(h->e, EINVAL, "a value has another type than the format says");
    return h->e ? err_wrap(h->e, "%s: the header", h->shard->path) : -EINVAL;
}

static int read_type(const struct header *h, const struct scan_tok *v, struct safetensors_tensor *t)
{
    for (int i = 0; v->kind == SCAN_STRING && i < ST_TYPES; i++)
        if (scan_text_is(v, types[i].name)) {
            t->type = (enum safetensors_type)i;
            return 0;
        }
    return bad(h, t->name, "has an unknown type");
}

/* An array of at most `max` whole numbers that aren't negative. */
static int read_numbers(struct header *h, const struct scan_tok *v, struct str name, uint64_t *out,
                        uint32_t max, uint32_t *n)
{
    struct scan_tok item;
    int rc;
    *n = 0;
    if (v->kind != SCAN_ARRAY)
        return bad(h, name, "has a shape or an extent that is no list");
    while ((rc = scan_element(&h->scan, &item)) == 1) {
        int64_t number;
        if (*n == max)
            return bad(h, name, "has too many dimensions or offsets");
        if (scan_i64(&item, 0, INT64_MAX, &number) < 0)
            return bad(h, name, "has a size that is no whole number from 0");
        out[(*n)++] = (uint64_t)number;
    }
    return rc < 0 ? bad_json(h) : 0;
}

/* Its extent agrees with its shape and lies in the file; offsets become absolute. */
static int check_extent(const struct header *h, struct safetensors_tensor *t,
                        const uint64_t offsets[2])
{
    const struct shard *s = h->shard;
    uint64_t n = 1, data = s->bytes - s->data_at;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n))
            return bad(h, t->name, "has an impossible shape");
    if (__builtin_mul_overflow(n, (uint64_t)types[t->type].bits, &n) || n % 8)
        return bad(h, t->name, "has an impossible shape");
    if (offsets[1] < offsets[0] || offsets[1] > data)
        return bad(h, t->name, "lies outside the file: is it cut short?");
    if (offsets[1] - offsets[0] != n / 8)
        return bad(h, t->name, "has another size than its shape and type give");
    t->offset = s->data_at + offsets[0];
    t->bytes = n / 8;
    return 0;
}

static int read_tensor(struct header *h, struct safetensors_tensor *t)
{
    struct scan_tok key, v;
    uint64_t offsets[2];
    uint32_t n_offsets = 0, n_dims = 0, seen = 0;
    int rc;
    for (uint32_t i = 0; i < SAFETENSORS_DIMS_MAX; i++)
        t->shape[i] = 1;
    while ((rc = scan_member(&h->scan, &key, &v)) == 1) {
        if (scan_text_is(&key, "dtype")) {
            rc = read_type(h, &v, t);
            seen |= 1;
        } else if (scan_text_is(&key, "shape")) {
            rc = read_numbers(h, &v, t->name, t->shape, SAFETENSORS_DIMS_MAX, &n_dims);
            seen |= 2;
        } else if (scan_text_is(&key, "data_offsets")) {
            rc = read_numbers(h, &v, t->name, offsets, 2, &n_offsets);
            seen |= n_offsets == 2 ? 4 : 0;
        } else {
            rc = bad(h, t->name, "has a member that the format doesn't know");
        }
        if (rc < 0)
            return rc;
    }
    if (rc < 0)
        return bad_json(h);
    if (seen != 7)
        return bad(h, t->name, "lacks dtype, shape or two data_offsets");
    t->n_dims = n_dims;
    return check_extent(h, t, offsets);
}

static struct safetensors_tensor *add_tensor(struct safetensors *st)
{
    if (st->n == st->cap) {
        size_t cap = st->cap ? 2 * st->cap : 256;
        void *p = realloc(st->tensors, cap * sizeof *st->tensors);
        if (!p)
            return NULL;
        st->tensors = p;
        st->cap = cap;
    }
    struct safetensors_tensor *t = &st->tensors[st->n++];
    memset(t, 0, sizeof *t);
    return t;
}

/* `__metadata__`: strings by name, of which nothing is used. */
static int skip_metadata(struct header *h, const struct scan_tok *v)
{
    struct scan_tok key, item;
    int rc;
    if (v->kind != SCAN_OBJECT)
        return bad_json(h);
    while ((rc = scan_member(&h->scan, &key, &item)) == 1)
        if (item.kind != SCAN_STRING)
            return bad_json(h);
    return rc < 0 ? bad_json(h) : 0;
}

static int read_member(struct header *h, const struct scan_tok *key, const struct scan_tok *v)
{
    if (scan_text_is(key, "__metadata__"))
        return skip_metadata(h, v);
    if (v->kind != SCAN_OBJECT)
        return bad_json(h);
    if (h->st->n >= TENSORS_MAX)
        return err_set(h->e, EINVAL, "%s: more than %u tensors", h->shard->path, TENSORS_MAX);
    struct safetensors_tensor *t = add_tensor(h->st);
    if (!t || scan_text(key, &h->shard->names, &t->name) < 0)
        return err_set(h->e, ENOMEM, "%s: no memory for its tensors", h->shard->path);
    if (t->name.n > NAME_BYTES_MAX || memchr(t->name.p, 0, t->name.n))
        return bad(h, t->name, "has an unusable name");
    t->shard = h->number;
    return read_tensor(h, t);
}

static int read_tensors(struct header *h, size_t n)
{
    struct scan_tok tok, key, v;
    scan_init(&h->scan, (struct str){h->shard->header, n}, 4);
    int rc = scan_next(&h->scan, &tok);
    if (rc < 0 || tok.kind != SCAN_OBJECT)
        rc = bad_json(h);
    while (rc >= 0 && (rc = scan_member(&h->scan, &key, &v)) == 1)
        rc = read_member(h, &key, &v);
    if (rc == 0 && (scan_next(&h->scan, &tok) < 0 || tok.kind != SCAN_END))
        rc = -EINVAL;
    if (rc < 0 && h->scan.why)
        rc = bad_json(h);
    scan_fini(&h->scan);
    return rc;
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

/* The data is covered from its first to its last byte, each byte once. */
static int check_cover(const struct header *h, size_t first)
{
    struct safetensors_tensor *t = h->st->tensors + first;
    size_t n = h->st->n - first;
    uint64_t at = h->shard->data_at;
    if (n)
        qsort(t, n, sizeof *t, by_offset);
    for (size_t i = 0; i < n; at += t[i].bytes, i++)
        if (t[i].offset != at)
            return bad(h, t[i].name, "leaves a hole or overlaps another");
    if (at != h->shard->bytes)
        return err_set(h->e, EINVAL, "%s: its tensors end at byte %llu of %llu: is it cut short?",
                       h->shard->path, (unsigned long long)at, (unsigned long long)h->shard->bytes);
    return 0;
}

static int open_regular(struct shard *s, struct err *e)
{
    struct stat st;
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 || fstat(s->fd, &st) < 0)
        return err_set(e, errno, "%s: %s", s->path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return err_set(e, EINVAL, "%s: not a regular file", s->path);
    s->bytes = (uint64_t)st.st_size;
    return 0;
}

static int read_shard(struct safetensors *st, uint32_t number, struct err *e)
{
    struct shard *s = &st->shards[number];
    struct header h = {.st = st, .shard = s, .number = number, .e = e};
    size_t first = st->n;
    uint64_t n = 0;
    int rc = open_regular(s, e);
    if (rc < 0)
        return rc;
    if (s->bytes < 8 || file_read_at(s->fd, &n, 8, 0) < 0 || n > HEADER_BYTES_MAX || n < 2 ||
        n > s->bytes - 8)
        return err_set(e, EINVAL, "%s: not a safetensors file, or cut short", s->path);
    s->data_at = 8 + n;
    s->header = malloc((size_t)n);
    if (!s->header)
        return err_set(e, ENOMEM, "%s: no memory for its header", s->path);
    if (file_read_at(s->fd, s->header, (size_t)n, 8) < 0)
        return err_set(e, EIO, "%s: can't read its header", s->path);
    if (s->header[0] != '{')
        return err_set(e, EINVAL, "%s: not a safetensors file", s->path);
    rc = read_tensors(&h, (size_t)n);
    return rc < 0 ? rc : check_cover(&h, first);
}

/* ---- shards ---- */

static int add_shard(struct safetensors *st, char *path, struct err *e)
{
    if (st->n_shards == SAFETENSORS_SHARDS_MAX) {
        free(path);
        return err_set(e, EINVAL, "more than %u files of tensors", SAFETENSORS_SHARDS_MAX);
    }
    struct shard *s = &st->shards[st->n_shards++];
    *s = (struct shard){.path = path, .fd = -1};
    arena_init(&s->names, 16u << 20);
    return 0;
}

/* A file name as an index may give it: nothing that leads out of the folder. */
static bool plain_name(const char *name)
{
    size_t n = strlen(name);
    return n > 0 && n < 256 && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\');
}

static int cmp_str(struct str a, struct str b)
{
    int c = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

static int by_name(const void *a, const void *b)
{
    return cmp_str(((const struct safetensors_tensor *)a)->name,
                   ((const struct safetensors_tensor *)b)->name);
}

static int sort_tensors(struct safetensors *st, const char *path, struct err *e)
{
    if (st->n)
        qsort(st->tensors, st->n, sizeof *st->tensors, by_name);
    for (size_t i = 1; i < st->n; i++)
        if (by_name(&st->tensors[i - 1], &st->tensors[i]) == 0)
            return err_set(e, EINVAL, "%s: tensor \"" STR_FMT "\" is there twice", path,
                           (int)(st->tensors[i].name.n < 100 ? st->tensors[i].name.n : 100),
                           st->tensors[i].name.p);
    return 0;
}

/* Shards in the order in which the index first names them. */
static int shards_of_index(struct safetensors *st, const json_t *map, const char *dir, size_t dir_n,
                           struct err *e)
{
    const char *key;
    json_t *v, *seen = json_object();
    int rc = 0;
    json_object_foreach ((json_t *)(uintptr_t)map, key, v) {
        const char *file = json_string_value(v);
        if (!file || !plain_name(file)) {
            rc = err_set(e, EINVAL, "%s: the file named for \"%.100s\" is not a plain name", dir,
                         key);
            break;
        }
        if (json_object_get(seen, file))
            continue;
        if (json_object_set_new(seen, file, json_true()))
            rc = err_set(e, ENOMEM, "%s: no memory for its index", dir);
        else
            rc = add_shard(st, xasprintf("%.*s%s", (int)dir_n, dir, file), e);
        if (rc < 0)
            break;
    }
    json_decref(seen);
    return rc;
}

/* Every name of the index is a tensor of the file that it names. */
static int check_index(const struct safetensors *st, const json_t *map, const char *path,
                       struct err *e)
{
    const char *key;
    json_t *v;
    json_object_foreach ((json_t *)(uintptr_t)map, key, v) {
        const struct safetensors_tensor *t = safetensors_find(st, key);
        const char *file = t ? strrchr(st->shards[t->shard].path, '/') : NULL;
        if (!t || strcmp(file ? file + 1 : st->shards[t->shard].path, json_string_value(v)) != 0)
            return err_set(e, EINVAL, "%s: tensor \"%.100s\" is not in %.100s", path, key,
                           json_string_value(v));
    }
    return 0;
}

static int open_index(struct safetensors *st, const char *path, struct err *e)
{
    CLEANUP(json_decrefp) json_t *o = json_parse_file(path, INDEX_BYTES_MAX, e);
    if (!o)
        return e ? -e->code : -EINVAL;
    const json_t *map = json_object_get(o, "weight_map");
    const char *slash = strrchr(path, '/');
    if (!json_is_object(map) || json_object_size(map) == 0)
        return err_set(e, EINVAL, "%s: no weight_map", path);
    int rc = shards_of_index(st, map, path, slash ? (size_t)(slash - path) + 1 : 0, e);
    for (uint32_t i = 0; rc == 0 && i < st->n_shards; i++)
        rc = read_shard(st, i, e);
    if (rc == 0)
        rc = sort_tensors(st, path, e);
    return rc < 0 ? rc : check_index(st, map, path, e);
}

static int open_single(struct safetensors *st, const char *path, struct err *e)
{
    int rc = add_shard(st, xstrdup(path), e);
    rc = rc ? rc : read_shard(st, 0, e);
    return rc ? rc : sort_tensors(st, path, e);
}

/* What a folder's tensors are in, on the heap. */
static int in_folder(const char *dir, char **out, struct err *e)
{
    char *path = xasprintf("%s/" INDEX_FILE, dir);
    unsigned n = 0;
    if (access(path, F_OK) == 0) {
        *out = path;
        return 0;
    }
    free(path);
    path = NULL;
    DIR *d = opendir(dir);
    for (struct dirent *x; d && (x = readdir(d));)
        if (str_ends(str_c(x->d_name), STR(".safetensors"))) {
            bool usual = strcmp(x->d_name, "model.safetensors") == 0;
            n = usual ? 1 : n + 1;
            free(path);
            path = xasprintf("%s/%s", dir, x->d_name);
            if (usual)
                break;
        }
    if (d)
        closedir(d);
    if (n == 1) {
        *out = path;
        return 0;
    }
    free(path);
    return n ? err_set(e, EINVAL, "%s: several .safetensors files and no " INDEX_FILE, dir)
             : err_set(e, ENOENT, "%s: no model.safetensors and no " INDEX_FILE, dir);
}

int safetensors_open(const char *path, struct safetensors **out, struct err *e)
{
    struct stat st;
    CLEANUP(free_charp) char *inside = NULL;
    if (stat(path, &st) < 0)
        return err_set(e, errno, "%s: %s", path, strerror(errno));
    int rc = S_ISDIR(st.st_mode) ? in_folder(path, &inside, e) : 0;
    if (rc < 0)
        return rc;
    path = inside ? inside : path;
    struct safetensors *s = xcalloc(1, sizeof *s);
    s->shards = xcalloc(SAFETENSORS_SHARDS_MAX, sizeof *s->shards);
    rc = str_ends(str_c(path), STR(".json")) ? open_index(s, path, e) : open_single(s, path, e);
    if (rc < 0) {
        safetensors_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void safetensors_free(struct safetensors *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; i < s->n_shards; i++) {
        close_fdp(&s->shards[i].fd);
        arena_fini(&s->shards[i].names);
        free(s->shards[i].header);
        free(s->shards[i].path);
    }
    free(s->shards);
    free(s->tensors);
    free(s);
}

/* ---- use ---- */

size_t safetensors_n_tensors(const struct safetensors *s)
{
    return s->n;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *s, size_t i)
{
    return i < s->n ? &s->tensors[i] : NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct safetensors_tensor key = {.name = str_c(name)};
    return s->n ? bsearch(&key, s->tensors, s->n, sizeof key, by_name) : NULL;
}

uint64_t safetensors_file_bytes(const struct safetensors *s)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < s->n_shards; i++)
        n += s->shards[i].bytes;
    return n;
}

int safetensors_read(const struct safetensors *s, const struct safetensors_tensor *t, uint64_t from,
                     void *out, size_t n, struct err *e)
{
    const struct shard *shard = &s->shards[t->shard];
    if (from > t->bytes || n > t->bytes - from)
        return err_set(e, EINVAL, "%s: a read past the end of tensor " STR_FMT, shard->path,
                       STR_ARG(t->name));
    int rc = file_read_at(shard->fd, out, n, t->offset + from);
    if (rc < 0)
        return err_set(e, EIO, "%s: can't read tensor " STR_FMT ": %s", shard->path,
                       STR_ARG(t->name), rc == -ENODATA ? "the file was cut short" : strerror(-rc));
    return 0;
}
