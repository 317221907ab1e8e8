/* tokenizer.json's normalizer, pre_tokenizer, post_processor and decoder, and the configuration
 * files beside it. */
#include "lib/json/json.h"
#include "lib/llm/tokenizer_impl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_SECTION (8u << 20)

static const char *type_of(const json_t *o)
{
    return json_str_at(o, "type", "");
}

static int unsupported(const char *what, const json_t *o, struct err *e)
{
    return err_set(e, ENOTSUP, "%s of type \"%s\" is not supported", what, type_of(o));
}

typedef int component_fn(struct tokenizer *t, const json_t *o, struct err *e);

/* Sequence {list: [...]} or one component. */
static int each(struct tokenizer *t, const json_t *o, const char *list, component_fn *fn,
                struct err *e)
{
    const json_t *items = json_at(o, list);
    size_t i;
    json_t *c;
    if (!json_is_object(o))
        return 0;
    if (strcmp(type_of(o), "Sequence") != 0)
        return fn(t, o, e);
    json_array_foreach ((json_t *)(uintptr_t)items, i, c) {
        int rc = each(t, c, list, fn, e);
        if (rc)
            return rc;
    }
    return 0;
}

static int add_normalizer(struct tokenizer *t, const json_t *o, struct err *e)
{
    const char *type = type_of(o);
    static const struct {
        const char *name;
        enum norm_kind kind;
    } forms[] = {{"NFC", NORM_NFC}, {"NFD", NORM_NFD}, {"NFKC", NORM_NFKC}, {"NFKD", NORM_NFKD}};
    for (size_t i = 0; i < 4; i++)
        if (strcmp(type, forms[i].name) == 0)
            return tokenizer_add_norm(t, forms[i].kind, STR(""), STR(""), e);
    const char *from = json_str_at(o, "pattern.String", NULL), *to = json_str_at(o, "content", "");
    if (strcmp(type, "Replace") == 0 && from) {
        if (strcmp(to, SPM_SPACE) == 0)
            t->spm = true;
        return tokenizer_add_norm(t, NORM_REPLACE, str_c(from), str_c(to), e);
    }
    if (strcmp(type, "Prepend") == 0)
        return tokenizer_add_norm(t, NORM_PREPEND, str_c(json_str_at(o, "prepend", "")), STR(""),
                                  e);
    return unsupported("a normalizer", o, e);
}

static int add_metaspace(struct tokenizer *t, const json_t *o, struct err *e)
{
    struct str mark = str_c(json_str_at(o, "replacement", SPM_SPACE));
    const char *scheme = json_str_at(
        o, "prepend_scheme", json_bool_at(o, "add_prefix_space", true) ? "always" : "never");
    t->spm = true;
    int rc = tokenizer_add_norm(t, NORM_REPLACE, STR(" "), mark, e);
    if (!rc && strcmp(scheme, "never") != 0)
        rc = tokenizer_add_norm(
            t, strcmp(scheme, "first") == 0 ? NORM_PREPEND_FIRST : NORM_PREPEND_ONCE, mark, STR(""),
            e);
    if (!rc && json_bool_at(o, "split", true))
        rc = pretok_add_literal(&t->pre, mark, PRETOK_MERGE_NEXT, false, e);
    return rc;
}

static int add_split(struct tokenizer *t, const json_t *o, struct err *e)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *behavior = json_str_at(o, "behavior", "");
    const char *regex = json_str_at(o, "pattern.Regex", NULL),
               *literal = json_str_at(o, "pattern.String", NULL);
    bool invert = json_bool_at(o, "invert", false);
    for (int b = 0; b < 5; b++) {
        if (strcmp(behavior, names[b]) != 0)
            continue;
        if (regex)
            return pretok_add_regex(&t->pre, str_c(regex), (enum pretok_behavior)b, invert, e);
        if (literal)
            return pretok_add_literal(&t->pre, str_c(literal), (enum pretok_behavior)b, invert, e);
    }
    return err_set(e, EINVAL, "a Split pre-tokenizer has no known behavior (\"%s\") or pattern",
                   behavior);
}

static int add_pre(struct tokenizer *t, const json_t *o, struct err *e)
{
    const char *type = type_of(o);
    if (strcmp(type, "Split") == 0)
        return add_split(t, o, e);
    if (strcmp(type, "Metaspace") == 0)
        return add_metaspace(t, o, e);
    if (strcmp(type, "Digits") == 0)
        return pretok_add_digits(&t->pre, json_bool_at(o, "individual_digits", false), e);
    if (strcmp(type, "ByteLevel") == 0) {
        int rc = 0;
        if (json_bool_at(o, "add_prefix_space", true))
            rc = t->pre.n
                     ? err_set(e, ENOTSUP, "ByteLevel with add_prefix_space after another stage")
                     : tokenizer_add_norm(t, NORM_PREPEND_ONCE, STR(" "), STR(""), e);
        if (!rc && json_bool_at(o, "use_regex", true))
            rc = pretok_add_regex(&t->pre, str_c(pretok_gpt2), PRETOK_ISOLATED, false, e);
        return rc;
    }
    if (strcmp(type, "Whitespace") == 0)
        return pretok_add_regex(&t->pre, STR("\\w+|[^\\w\\s]+"), PRETOK_REMOVED, true, e);
    return unsupported("a pre-tokenizer", o, e);
}

static int add_decoder(struct tokenizer *t, const json_t *o, struct err *e)
{
    (void)e;
    const char *type = type_of(o);
    if (strcmp(type, "Strip") == 0 && json_int_at(o, "start", 0) == 1 &&
        strcmp(json_str_at(o, "content", ""), " ") == 0)
        t->strip_left_space = true;
    if (strcmp(type, "Metaspace") == 0)
        t->strip_left_space = strcmp(json_str_at(o, "prepend_scheme", "always"), "never") != 0;
    return 0;
}

static int add_template(struct tokenizer *t, const json_t *o, struct err *e)
{
    size_t i, k;
    json_t *piece, *id;
    bool after = false;
    json_array_foreach (json_at(o, "single"), i, piece) {
        const char *name = json_str_at(piece, "SpecialToken.id", NULL);
        if (!name) {
            after = true;
            continue;
        }
        json_t *ids = json_at(json_object_get(json_at(o, "special_tokens"), name), "ids");
        json_array_foreach (ids, k, id) {
            json_int_t v = json_integer_value(id);
            size_t *n = after ? &t->n_suffix : &t->n_prefix;
            if (v < 0 || v >= t->v.n || *n == TOKENIZER_MAX_TEMPLATE)
                return err_set(e, EINVAL,
                               "post_processor: the special token \"%s\" has no usable id", name);
            (after ? t->suffix : t->prefix)[(*n)++] = (uint32_t)v;
        }
    }
    return 0;
}

static int add_post(struct tokenizer *t, const json_t *o, struct err *e)
{
    if (strcmp(type_of(o), "TemplateProcessing") == 0)
        return add_template(t, o, e);
    return strcmp(type_of(o), "ByteLevel") == 0 ? 0 : unsupported("a post-processor", o, e);
}

int tokenizer_json_pipeline(struct tokenizer *t, struct str normalizer, struct str pre,
                            struct str post, struct str decoder, struct err *e)
{
    const struct {
        const char *name, *list;
        struct str raw;
        component_fn *fn;
    } part[] = {{"normalizer", "normalizers", normalizer, add_normalizer},
                {"pre_tokenizer", "pretokenizers", pre, add_pre},
                {"post_processor", "processors", post, add_post},
                {"decoder", "decoders", decoder, add_decoder}};
    for (size_t i = 0; i < 4; i++) {
        if (!part[i].raw.n)
            continue;
        CLEANUP(json_decrefp) json_t *o = json_parse(part[i].raw, MAX_SECTION, 16, e);
        if (!o)
            return e ? err_wrap(e, "%s", part[i].name) : -EINVAL;
        int rc = each(t, o, part[i].list, part[i].fn, e);
        if (rc)
            return e ? err_wrap(e, "%s", part[i].name) : rc;
    }
    snprintf(t->pre_name, sizeof t->pre_name, "from tokenizer.json");
    return 0;
}

/* ---- files beside it ---- */

/* NULL without an error when there is no such file. */
static int load_optional(const char *folder, const char *name, json_t **out, struct err *e)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/%s", folder, name);
    json_error_t je;
    *out = NULL;
    if (access(path, R_OK))
        return 0;
    /* model_max_length is 1e30 written as an integer in many of these files: hence INT_AS_REAL. */
    *out = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &je);
    return *out ? 0 : err_set(e, EINVAL, "%s: line %d: %s", path, je.line, je.text);
}

static uint32_t named_token(const struct tokenizer *t, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    const char *text = json_is_string(v) ? json_string_value(v) : json_str_at(v, "content", NULL);
    return text ? tokenizer_find(t, str_c(text)) : TOKEN_NONE;
}

static const char *default_template(const json_t *config)
{
    const json_t *v = json_object_get(config, "chat_template");
    size_t i;
    json_t *one;
    if (json_is_string(v))
        return json_string_value(v);
    json_array_foreach ((json_t *)(uintptr_t)v, i, one)
        if (strcmp(json_str_at(one, "name", ""), "default") == 0)
            return json_str_at(one, "template", NULL);
    return NULL;
}

static int read_template_file(struct tokenizer *t, const char *folder, struct err *e)
{
    CLEANUP(free_charp) char *path = xasprintf("%s/chat_template.jinja", folder);
    FILE *f = fopen(path, "rbe");
    if (!f)
        return 0;
    size_t cap = 1 << 20;
    char *text = xmalloc(cap + 1);
    size_t n = fread(text, 1, cap + 1, f);
    fclose(f);
    if (n > cap) {
        free(text);
        return err_set(e, EFBIG, "chat_template.jinja is larger than 1 MiB");
    }
    text[n] = 0;
    free(t->chat_template);
    t->chat_template = text;
    return 0;
}

static void add_eog_number(struct tokenizer *t, const json_t *v)
{
    double id = json_number_value(v);
    if (id >= 0 && id < t->v.n)
        tokenizer_add_eog(t, (uint32_t)id);
}

int tokenizer_json_config(struct tokenizer *t, const char *folder, struct err *e)
{
    CLEANUP(json_decrefp) json_t *config = NULL;
    CLEANUP(json_decrefp) json_t *generation = NULL;
    int rc = load_optional(folder, "tokenizer_config.json", &config, e);
    if (!rc)
        rc = load_optional(folder, "generation_config.json", &generation, e);
    if (rc)
        return rc;
    t->bos = named_token(t, config, "bos_token");
    t->eos = named_token(t, config, "eos_token");
    t->pad = named_token(t, config, "pad_token");
    const char *chat = default_template(config);
    if (chat)
        t->chat_template = xstrdup(chat);
    json_t *eos = json_object_get(generation, "eos_token_id"), *id;
    size_t i;
    if (json_is_number(eos))
        add_eog_number(t, eos);
    json_array_foreach (eos, i, id)
        add_eog_number(t, id);
    return read_template_file(t, folder, e);
}
