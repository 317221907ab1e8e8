/* libFuzzer: what the embedded API server parses besides JSON and YAML: protobuf bodies, selectors,
 * JSON paths, JSON patches, and server-side apply of arbitrary objects over each other. The first
 * byte chooses. */
#include "local/jsonpatch.h"
#include "local/jsonpath.h"
#include "local/managed.h"
#include "local/proto.h"
#include "local/selector.h"
#include "local/types.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void selectors(const char *text)
{
    static const char *const fields[] = {"a.b", NULL};
    static const struct kind_ops ops = {.fields = fields};
    struct resource r = {
        .group = "", .plural = "pods", .kind = "Pod", .flags = R_NAMESPACED, .ops = &ops};
    struct selector s;
    json_t *st = NULL,
           *doc = json_pack("{s:{s:{s:s}},s:{s:s}}", "metadata", "labels", "a", "b", "a", "b", "c");
    for (int fields_too = 0; fields_too < 2; fields_too++) {
        if (!selector_parse(&r, text, fields_too ? text : NULL, &s, &st)) {
            (void)selector_matches(&s, doc);
            selector_fini(&s);
        }
        json_decref(st);
        st = NULL;
    }
    json_decref(doc);
}

static void paths(const char *text)
{
    json_t *doc = json_pack("{s:[{s:i},{s:i}]}", "a", "b", 1, "b", 2), *found = json_array();
    struct err e;
    (void)(jsonpath_check(text, &e) == 0);
    jsonpath_find(doc, text, found);
    json_decref(found);
    json_decref(doc);
}

static void patches(const char *text)
{
    struct err e = {0};
    json_t *doc = json_pack("{s:[i,i],s:{s:s}}", "a", 1, 2, "b", "c", "d");
    json_t *patch = json_parse(str_c(text), 1 << 16, 0, NULL);
    if (patch && jsonpatch_apply(&doc, patch, &e))
        ASSERT(json_is_object(doc));
    json_decref(patch);
    json_decref(doc);
}

/* "{…}\n{…}": the second is applied over the first by two managers in turn; what is applied twice
 * changes nothing more. */
static void applies(const char *text)
{
    struct str rest = str_c(text), head;
    rest = str_cut(rest, '\n', &head);
    struct resource r = {.group = "",
                         .version = "v1",
                         .plural = "pods",
                         .kind = "Pod",
                         .flags = R_NAMESPACED | R_STATUS};
    r.schema = types_kind("", "v1", "Pod");
    struct managed_writer w = {
        .manager = "a", .sub = "", .now = "2026-01-01T00:00:00Z", .force = true};
    json_t *a = json_parse(head, 1 << 16, 0, NULL), *b = json_parse(rest, 1 << 16, 0, NULL);
    json_t *one = NULL, *two = NULL, *three = NULL, *st = NULL;
    if (json_is_object(a) && json_is_object(b)) {
        bool ok = !managed_apply(&r, NULL, a, &w, &one, &st);
        w.manager = "b";
        ok = ok && !managed_apply(&r, one, b, &w, &two, &st) &&
             !managed_apply(&r, two, b, &w, &three, &st);
        if (ok && json_at(two, "metadata.managedFields"))
            ASSERT(json_equal(two, three));
    }
    json_decref(a);
    json_decref(b);
    json_decref(one);
    json_decref(two);
    json_decref(three);
    json_decref(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 1)
        return 0;
    char *text = xmalloc(n);
    memcpy(text, data + 1, n - 1);
    text[n - 1] = 0;
    switch (data[0] % 5) {
    case 0: json_decref(proto_decode((struct str){(const char *)data + 1, n - 1}, NULL)); break;
    case 1: selectors(text); break;
    case 2: paths(text); break;
    case 3: patches(text); break;
    case 4: applies(text); break;
    }
    free(text);
    return 0;
}
