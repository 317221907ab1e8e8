#include "lib/llm/template.h"

#include "lib/llm/jinja.h"
#include "lib/llm/utf8.h"

#include <errno.h>
#include <stdlib.h>

#define COMPILE_FACTOR 256 /* bytes of tree a byte of source may take */
#define DEFAULT_STEPS  20000000
#define BASE_MEMORY    (64u << 20)
#define MAX_OUTPUT     (256u << 20)

const char chat_template_missing[] =
    "this model has no chat template; use /v1/completions or set model.chatTemplate";

/* ---- what the template expects ---- */

static bool names_content(const struct node *n)
{
    if (!n)
        return false;
    if (n->kind == N_ITEM && n->b && n->b->kind == N_CONST && n->b->value.kind == V_STR)
        return str_eq_c(n->b->value.s, "content");
    if (n->kind == N_FILTER)
        return names_content(n->a);
    return (n->kind == N_ATTR || n->kind == N_NAME) && str_ends(n->name, STR("content"));
}

/* A loop over a message's content means that the template takes lists of parts. */
static bool loops_over_content(const struct nodes *body, int depth)
{
    for (size_t i = 0; i < body->n && depth < JINJA_MAX_DEPTH; i++) {
        const struct node *n = body->v[i];
        if (n->kind == N_FOR && names_content(n->b))
            return true;
        if (n->kind >= N_TEXT && (loops_over_content(&n->body, depth + 1) ||
                                  loops_over_content(&n->otherwise, depth + 1)))
            return true;
    }
    return false;
}

int chat_template_new(struct str source, struct chat_template **out, struct err *e)
{
    if (source.n > CHAT_TEMPLATE_MAX_BYTES)
        return err_set(e, E2BIG, "a chat template of %zu bytes is larger than the limit of %u",
                       source.n, CHAT_TEMPLATE_MAX_BYTES);
    struct chat_template *t = xcalloc(1, sizeof *t);
    struct buf repaired;
    arena_init(&t->a, (source.n + 4096) * COMPILE_FACTOR);
    buf_init(&repaired, 3 * (size_t)CHAT_TEMPLATE_MAX_BYTES);
    int rc = utf8_repair(source, &repaired);
    char *copy = rc ? NULL : arena_dup(&t->a, buf_view(&repaired));
    t->source = (struct str){copy, repaired.n};
    buf_fini(&repaired);
    rc = copy ? jinja_parse(t, e) : err_set(e, ENOMEM, "not enough memory for the chat template");
    if (rc) {
        chat_template_free(t);
        return rc;
    }
    t->takes_parts = loops_over_content(&t->body, 0);
    t->knows_developer = t->source.n && memmem(t->source.p, t->source.n, "developer", 9);
    *out = t;
    return 0;
}

void chat_template_free(struct chat_template *t)
{
    if (!t)
        return;
    arena_fini(&t->a);
    free(t);
}

bool chat_template_takes_parts(const struct chat_template *t)
{
    return t->takes_parts;
}

/* ---- messages as templates expect them ---- */

static struct val *member(struct val *dict, const char *name)
{
    for (size_t i = 0; dict->kind == V_DICT && i < dict->d->n; i++)
        if (dict->d->p[i].k.kind == V_STR && str_eq_c(dict->d->p[i].k.s, name))
            return &dict->d->p[i].v;
    return NULL;
}

/* A list of text parts as one string, the parts on lines of their own. */
static int join_parts(struct render *r, struct val *content)
{
    struct buf b = v_buf(r);
    int rc = 0;
    bool first = true;
    for (size_t i = 0; i < content->l->n && !rc; i++) {
        struct val *text = member(&content->l->v[i], "text");
        if (!text || text->kind != V_STR)
            continue;
        rc = first ? 0 : buf_cstr(&b, "\n");
        first = false;
        if (!rc)
            rc = buf_str(&b, text->s);
    }
    if (!rc)
        return v_take(r, &b, content);
    buf_fini(&b);
    return jinja_no_memory(r);
}

/* Clients send a call's arguments as JSON text; templates expect the object. Other text stays as it
 * is. */
static int parse_arguments(struct render *r, struct val *calls)
{
    for (size_t i = 0; calls && calls->kind == V_LIST && i < calls->l->n; i++) {
        struct val *function = member(&calls->l->v[i], "function");
        struct val *arguments = function ? member(function, "arguments") : NULL;
        struct val parsed;
        struct err ignored = {0}, *outer = r->e;
        if (!arguments || arguments->kind != V_STR)
            continue;
        r->e = &ignored;
        int rc = v_from_json(r, arguments->s, "arguments", &parsed);
        r->e = outer;
        if (rc && r->steps > r->max_steps)
            return jinja_charge(r, 0);
        if (!rc && parsed.kind == V_DICT)
            *arguments = parsed;
    }
    return 0;
}

static int adapt_message(struct render *r, const struct chat_template *t, struct val *m)
{
    struct val *content = member(m, "content"), *role = member(m, "role");
    int rc = 0;
    if (content && content->kind == V_LIST && !t->takes_parts)
        rc = join_parts(r, content);
    else if (content && content->kind == V_NONE && !t->takes_parts)
        *content = v_str(STR(""));
    else if (!content && m->kind == V_DICT)
        rc = v_put(r, m->d, v_str(STR("content")), v_str(STR("")));
    if (role && role->kind == V_STR && str_eq_c(role->s, "developer") && !t->knows_developer)
        *role = v_str(STR("system"));
    return rc ? rc : parse_arguments(r, member(m, "tool_calls"));
}

/* ---- rendering ---- */

static int bind_json(struct render *r, const char *name, struct str json, struct val *v)
{
    *v = v_none();
    int rc = json.n ? v_from_json(r, json, name, v) : 0;
    return rc ? rc : jinja_set(r, r->scope, str_c(name), *v);
}

static int bind_extra(struct render *r, struct str json)
{
    struct val v = v_none();
    int rc = json.n ? v_from_json(r, json, "chat_template_kwargs", &v) : 0;
    for (size_t i = 0; !rc && v.kind == V_DICT && i < v.d->n; i++)
        rc = jinja_set(r, r->scope, v.d->p[i].k.s, v.d->p[i].v);
    return rc;
}

/* continue_final_message: a mark is put behind the last message's text; the rendered text ends
 * where the mark stands. Its space shows whether the template trims. */
#define CONTINUE_MARK "CONTINUE_FINAL_MESSAGE_TAG "

static int mark_final(struct render *r, struct val *messages, struct str *final)
{
    struct val *content =
        messages->l->n ? member(&messages->l->v[messages->l->n - 1], "content") : NULL;
    if (content && content->kind == V_LIST) {
        struct val *parts = content;
        content = NULL;
        for (size_t i = parts->l->n; i-- > 0 && !content;)
            content = member(&parts->l->v[i], "text");
    }
    if (!content || content->kind != V_STR)
        return jinja_fail(r, EINVAL, "continue_final_message needs a last message with a text");
    struct val text = *content, mark = v_str(STR(CONTINUE_MARK));
    *final = text.s;
    return jinja_binary(r, OP_ADD, &text, &mark, content);
}

static int bind_inputs(struct render *r, const struct chat_template *t,
                       const struct chat_render *in, struct str *final)
{
    struct val messages, tools, documents;
    int rc = jinja_set(r, r->scope, STR("bos_token"), v_str(in->bos_token));
    if (!rc)
        rc = jinja_set(r, r->scope, STR("eos_token"), v_str(in->eos_token));
    if (!rc)
        rc =
            jinja_set(r, r->scope, STR("add_generation_prompt"), v_bool(in->add_generation_prompt));
    if (!rc)
        rc = bind_json(r, "documents", STR(""), &documents);
    if (!rc)
        rc = bind_json(r, "tools", in->tools, &tools);
    if (!rc)
        rc = bind_json(r, "messages", in->messages, &messages);
    if (!rc && messages.kind != V_LIST)
        rc = jinja_fail(r, EINVAL, "messages must be a list");
    for (size_t i = 0; !rc && !in->plain_values && i < messages.l->n; i++)
        rc = adapt_message(r, t, &messages.l->v[i]);
    if (!rc && in->continue_final_message)
        rc = mark_final(r, &messages, final);
    return rc ? rc : bind_extra(r, in->extra);
}

static int cut_at_mark(struct render *r, struct str final, struct buf *out, size_t start)
{
    static const char mark[] = CONTINUE_MARK;
    size_t n = sizeof mark - 1;
    struct val text;
    int trimmed = jinja_trim(r, final, NULL, 3, &text);
    if (trimmed || (text.s.n && !memmem(out->data + start, out->n - start, text.s.p, text.s.n)))
        return trimmed ? trimmed
                       : jinja_fail(r, EINVAL,
                                    "continue_final_message is set, but the template changes the "
                                    "last message");
    for (size_t i = out->n - start >= n - 1 ? out->n - (n - 1) + 1 : 0; i-- > start;) {
        if (memcmp(out->data + i, mark, n - 1) != 0)
            continue;
        bool whole = out->data[i + n - 1] == ' ';
        int rc =
            jinja_trim(r, (struct str){out->data + start, i - start}, NULL, whole ? 0 : 2, &text);
        out->n = start + text.s.n;
        out->data[out->n] = 0;
        return rc;
    }
    return jinja_fail(r, EINVAL,
                      "continue_final_message is set, but the template drops the last message");
}

int chat_template_render(const struct chat_template *t, const struct chat_render *in,
                         struct buf *out, struct err *e)
{
    size_t inputs = in->messages.n + in->tools.n + in->extra.n;
    struct scope root = {0};
    struct err local = {0};
    struct render r = {.out = out,
                       .scope = &root,
                       .e = e ? e : &local,
                       .now_wall_ns = in->now_wall_ns,
                       .max_capture = MAX_OUTPUT};
    r.max_steps = in->max_steps ? in->max_steps : DEFAULT_STEPS;
    arena_init(&r.a, in->max_memory ? in->max_memory : 16 * inputs + BASE_MEMORY);
    struct str final = STR("");
    size_t before = out->n;
    int rc = buf_append(out, "", 0);
    if (!rc)
        rc = bind_inputs(&r, t, in, &final);
    if (!rc)
        rc = jinja_run(&r, &t->body);
    if (!rc && in->continue_final_message)
        rc = cut_at_mark(&r, final, out, before);
    arena_fini(&r.a);
    if (rc && out->data) {
        out->n = before;
        out->data[before] = 0;
    }
    return rc;
}
