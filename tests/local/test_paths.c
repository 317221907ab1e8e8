/* JSONPath, JSON patch, selectors, names, protobuf bodies. */
#include "local/jsonpatch.h"
#include "local/jsonpath.h"
#include "local/names.h"
#include "local/proto.h"
#include "local/selector.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static json_t *js(const char *text)
{
    json_t *o = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(o);
    return o;
}

static void find(const char *doc, const char *path, const char *want)
{
    json_t *d = js(doc), *found = json_array();
    jsonpath_find(d, path, found);
    CLEANUP(free_charp) char *have = json_dumps(found, JSON_COMPACT);
    assert_string_equal(have, want);
    json_decref(d);
    json_decref(found);
}

static void json_paths_reach_fields_items_and_filtered_items(void **state)
{
    (void)state;
    const char *doc = "{\"a\":{\"b.c\":1,\"l\":[{\"t\":\"R\",\"v\":1},{\"t\":\"S\",\"v\":2}]}}";
    find(doc, ".a.l[0].v", "[1]");
    find(doc, ".a.l[-1].v", "[2]");
    find(doc, ".a.l[*].v", "[1,2]");
    find(doc, ".a.l[?(@.t==\"S\")].v", "[2]");
    find(doc, ".a.l[?(@.t != 'S')].v", "[1]");
    find(doc, ".a['b.c']", "[1]");
    find(doc, ".a.b\\.c", "[1]");
    find(doc, ".nope.x", "[]");
}

static void malformed_json_paths_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",      "a",   ".a[",           ".a[?(@.b)]",
                                      ".a[x]", "..a", ".a[?(@.b==\"x]"};
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(jsonpath_check(bad[i], &e), -EINVAL);
}

static void patch(const char *doc, const char *ops, int rc, const char *want)
{
    struct err e = {0};
    json_t *d = js(doc), *p = js(ops), *w = js(want);
    assert_int_equal(jsonpatch_apply(&d, p, &e), rc);
    if (!json_equal(d, w))
        fail_msg("%s", json_dumps(d, 0));
    json_decref(d);
    json_decref(p);
    json_decref(w);
}

static void json_patches_follow_rfc_6902(void **state)
{
    (void)state;
    patch("{\"a\":[1,2]}", "[{\"op\":\"add\",\"path\":\"/a/1\",\"value\":9}]", 0,
          "{\"a\":[1,9,2]}");
    patch("{\"a\":[1]}", "[{\"op\":\"add\",\"path\":\"/a/-\",\"value\":9}]", 0, "{\"a\":[1,9]}");
    patch("{\"a/b\":{\"~\":1}}", "[{\"op\":\"remove\",\"path\":\"/a~1b/~0\"}]", 0, "{\"a/b\":{}}");
    patch("{\"a\":1}",
          "[{\"op\":\"replace\",\"path\":\"/a\",\"value\":2},{\"op\":\"test\",\"path\":\"/"
          "a\",\"value\":2}]",
          0, "{\"a\":2}");
    patch("{\"a\":1}", "[{\"op\":\"move\",\"from\":\"/a\",\"path\":\"/b\"}]", 0, "{\"b\":1}");
    patch("{\"a\":1}", "[{\"op\":\"copy\",\"from\":\"/a\",\"path\":\"/b\"}]", 0,
          "{\"a\":1,\"b\":1}");
    patch("{\"a\":1}", "[{\"op\":\"add\",\"path\":\"\",\"value\":[]}]", 0, "[]");
}

static void a_json_patch_that_fails_changes_nothing(void **state)
{
    (void)state;
    const char *one = "{\"a\":[1]}";
    patch(one, "[{\"op\":\"add\",\"path\":\"/b\",\"value\":1},{\"op\":\"remove\",\"path\":\"/c\"}]",
          -ENOENT, one);
    patch(one, "[{\"op\":\"add\",\"path\":\"/a/5\",\"value\":1}]", -ENOENT, one);
    patch(one, "[{\"op\":\"add\",\"path\":\"/a/01\",\"value\":1}]", -ENOENT, one);
    patch(one, "[{\"op\":\"test\",\"path\":\"/a/0\",\"value\":2}]", -ENOENT, one);
    patch(one, "[{\"op\":\"add\",\"path\":\"b\",\"value\":1}]", -EINVAL, one);
    patch(one, "{}", -EINVAL, one);
}

static bool selects(const char *labels, const char *fields, const char *doc)
{
    static const char *const pod_fields[] = {"status.phase", NULL};
    static const struct kind_ops ops = {.fields = pod_fields};
    struct resource r = {
        .group = "", .plural = "pods", .kind = "Pod", .flags = R_NAMESPACED, .ops = &ops};
    struct selector s;
    json_t *st = NULL, *d = js(doc);
    assert_int_equal(selector_parse(&r, labels, fields, &s, &st), 0);
    bool yes = selector_matches(&s, d);
    selector_fini(&s);
    json_decref(d);
    return yes;
}

static void label_selectors_are_equality_and_set_based(void **state)
{
    (void)state;
    const char *doc = "{\"metadata\":{\"name\":\"n\",\"labels\":{\"a\":\"1\",\"b.io/"
                      "c\":\"x\"}},\"status\":{\"phase\":\"Running\"}}";
    assert_true(selects("a=1", NULL, doc));
    assert_true(selects("a==1,b.io/c!=y", NULL, doc));
    assert_true(selects("a in (1, 2),!d", NULL, doc));
    assert_true(selects("d notin (1),a", NULL, doc));
    assert_true(selects("a>0,a<2", NULL, doc));
    assert_false(selects("a notin (1)", NULL, doc));
    assert_false(selects("!a", NULL, doc));
    assert_true(selects(NULL, "metadata.name=n,status.phase!=Failed", doc));
    assert_false(selects("a=1", "status.phase=Pending", doc));
}

static void malformed_selectors_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"a in (1", "a in", "=x",    "a=1=2",
                                      "a b",     "-a=1", "a=-x-", "a,,b"};
    struct resource r = {.group = "", .plural = "pods", .kind = "Pod", .flags = R_NAMESPACED};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct selector s;
        json_t *st = NULL;
        if (!selector_parse(&r, bad[i], NULL, &s, &st))
            fail_msg("%s", bad[i]);
        assert_int_equal(json_int_at(st, "code", 0), 400);
        json_decref(st);
    }
}

static void names_are_checked_as_rfc_1123_asks(void **state)
{
    (void)state;
    assert_null(name_check_dns_subdomain("a.b-c.1"));
    assert_non_null(name_check_dns_subdomain("A"));
    assert_non_null(name_check_dns_subdomain("a..b"));
    assert_non_null(name_check_dns_label("a.b"));
    assert_null(name_check_label_key("x.io/Y_z"));
    assert_non_null(name_check_label_key("x.io/"));
    assert_non_null(name_check_label_value("-a"));
    assert_null(name_check_label_value(""));
    assert_non_null(name_check_path_segment("a/b"));
}

/* k8s\0 Unknown{typeMeta{v1, ConfigMap}, raw ConfigMap{metadata{name: a}, data{x: 1}}} */
static const char config_map[] = "k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12\x0d\n\x03\n\x01"
                                 "a\x12\x06\n\x01x\x12\x01"
                                 "1";

static void a_protobuf_body_becomes_the_same_json(void **state)
{
    (void)state;
    struct err e = {0};
    struct str body = {config_map, sizeof config_map - 1};
    json_t *d = proto_decode(body, &e);
    if (!d)
        fail_msg("%s", e.msg);
    json_t *want = js("{\"metadata\":{\"name\":\"a\"},\"data\":{\"x\":\"1\"},\"apiVersion\":\"v1\","
                      "\"kind\":\"ConfigMap\"}");
    assert_true(json_equal(d, want));
    json_decref(d);
    json_decref(want);
}

static void cut_protobuf_bodies_are_refused_or_shorter_but_never_read_past(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof config_map; n++) {
        struct err e = {0};
        char *copy =
            xmalloc(n ? n : 1); /* exact size, so that a sanitizer sees a read past the end */
        memcpy(copy, config_map, n);
        json_decref(proto_decode((struct str){copy, n}, &e));
        free(copy);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(json_paths_reach_fields_items_and_filtered_items),
        cmocka_unit_test(malformed_json_paths_are_refused),
        cmocka_unit_test(json_patches_follow_rfc_6902),
        cmocka_unit_test(a_json_patch_that_fails_changes_nothing),
        cmocka_unit_test(label_selectors_are_equality_and_set_based),
        cmocka_unit_test(malformed_selectors_are_refused),
        cmocka_unit_test(names_are_checked_as_rfc_1123_asks),
        cmocka_unit_test(a_protobuf_body_becomes_the_same_json),
        cmocka_unit_test(cut_protobuf_bodies_are_refused_or_shorter_but_never_read_past),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
