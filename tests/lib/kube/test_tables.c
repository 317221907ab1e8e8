/* Field tables against the CRDs, both ways: each field of a table is in the schema with a fitting
 * type, and each field of the schema is in the table. Also: a round trip through the tables loses
 * nothing. */
#include "lib/kube/types.h"
#include "lib/kube/yaml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static json_t *schema_of(const char *file)
{
    struct err e = {0};
    json_t *crd = yaml_parse_file(file, 1u << 20, &e);
    if (!crd)
        fail_msg("%s", e.msg);
    json_t *s = json_incref(json_at(crd, "spec.versions.0.schema.openAPIV3Schema"));
    assert_non_null(s);
    json_decref(crd);
    return s;
}

static json_t *property(json_t *schema, const char *path)
{
    struct str rest = str_c(path), head;
    while (rest.n && schema) {
        rest = str_cut(rest, '.', &head);
        schema = json_object_getn(json_object_get(schema, "properties"), head.p, head.n);
    }
    return schema;
}

static bool fits(const struct view_field *f, const json_t *schema)
{
    const char *type = json_str_at(schema, "type", "");
    switch (f->kind) {
    case VIEW_STR:
    case VIEW_B64: return strcmp(type, "string") == 0;
    case VIEW_TIME: return strcmp(json_str_at(schema, "format", ""), "date-time") == 0;
    case VIEW_INT:
    case VIEW_QTY: return strcmp(type, "integer") == 0;
    case VIEW_NUM: return strcmp(type, "number") == 0;
    case VIEW_BOOL: return strcmp(type, "boolean") == 0;
    case VIEW_MAP: return json_object_get(schema, "additionalProperties") != NULL;
    case VIEW_OBJ: return strcmp(type, "object") == 0;
    case VIEW_LIST:
    case VIEW_STRS: return strcmp(type, "array") == 0;
    case VIEW_RAW: return strcmp(type, "object") == 0 || strcmp(type, "array") == 0;
    }
    return false;
}

/* Marks what the table covers by an extra member of the schema nodes. */
static void cover(const struct view *v, json_t *schema, const char *where)
{
    for (const struct view_field *f = v->fields; f->path; f++) {
        if (strcmp(f->path, "metadata") == 0)
            continue;
        json_t *node = property(schema, f->path);
        if (!node)
            fail_msg("%s.%s is in the table but not in the schema", where, f->path);
        if (!fits(f, node))
            fail_msg("%s.%s: the schema says %s", where, f->path,
                     json_str_at(node, "type", "nothing"));
        json_object_set_new(node, "covered", json_true());
        CLEANUP(free_charp) char *deeper = xasprintf("%s.%s", where, f->path);
        if (f->kind == VIEW_OBJ)
            cover(f->sub, node, deeper);
        if (f->kind == VIEW_LIST)
            cover(f->sub, json_object_get(node, "items"), deeper);
    }
}

static void all_covered(json_t *schema, const char *where)
{
    const char *key;
    json_t *node;
    json_object_foreach (json_object_get(schema, "properties"), key, node) {
        CLEANUP(free_charp) char *path = xasprintf("%s.%s", where, key);
        json_t *items = json_object_get(node, "items");
        bool inner = json_object_get(node, "properties") || json_object_get(items, "properties");
        if (!inner && !json_object_get(node, "covered"))
            fail_msg("%s is in the schema but not in the table", path);
        if (!json_str_at(node, "description", NULL))
            fail_msg("%s has no description", path);
        all_covered(node, path);
        if (items)
            all_covered(items, path);
    }
}

static void check(const char *file, const struct view *v)
{
    json_t *s = schema_of(file);
    cover(v, s, v->name);
    static const char *const parts[] = {"spec", "status"};
    for (int i = 0; i < 2; i++) {
        json_t *part = json_object_get(json_object_get(s, "properties"), parts[i]);
        if (part)
            all_covered(part, parts[i]);
    }
    json_decref(s);
}

static void the_table_of_inferencedeployment_is_its_schema(void **state)
{
    (void)state;
    check("manifests/crds/inferencedeployments.yaml", &kube_infd_view);
}

static void the_table_of_workerpool_is_its_schema(void **state)
{
    (void)state;
    check("manifests/crds/workerpools.yaml", &kube_wp_view);
}

static void the_table_of_nodeinventory_is_its_schema(void **state)
{
    (void)state;
    check("manifests/crds/nodeinventories.yaml", &kube_ninv_view);
}

static void samples_survive_a_round_trip_through_the_table(void **state)
{
    static const char *const files[] = {"manifests/samples/chat.yaml",
                                        "manifests/samples/chat-auto.yaml"};
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct err e = {0};
        json_t *o = yaml_parse_file(files[i], 65536, &e);
        struct kube_infd *d = view_decode(&kube_infd_view, o, &e);
        if (!d)
            fail_msg("%s: %s", files[i], e.msg);
        json_t *back = view_encode(&kube_infd_view, d);
        json_object_del(o, "apiVersion");
        json_object_del(o, "kind");
        if (!json_equal(o, back)) {
            char *a = json_dumps(o, JSON_SORT_KEYS), *b = json_dumps(back, JSON_SORT_KEYS);
            fail_msg("%s\n%s\n%s", files[i], a, b);
        }
        free(d);
        json_decref(o);
        json_decref(back);
    }
}

static struct kube_infd *decode(const char *text, struct err *e)
{
    json_t *o = json_parse(str_c(text), 1u << 20, 0, e);
    struct kube_infd *d = o ? view_decode(&kube_infd_view, o, e) : NULL;
    json_decref(o);
    return d;
}

static void absent_differs_from_zero(void **state)
{
    struct err e = {0};
    (void)state;
    struct kube_infd *a =
        decode("{\"metadata\":{\"name\":\"x\"},\"spec\":{\"decode\":{\"replicas\":0}}}", &e);
    struct kube_infd *b =
        decode("{\"metadata\":{\"name\":\"x\"},\"spec\":{\"decode\":{\"replicas\":null}}}", &e);
    char where[128] = "";
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a->decode.has & 1, 1);
    assert_int_equal(b->decode.has & 1, 0);
    assert_true(view_diff(&kube_infd_view, a, b, where, sizeof where));
    assert_string_equal(where, "spec.decode.replicas");
    assert_true(VIEW_HAS(&kube_infd_view, a, struct kube_infd, decode));
    assert_false(VIEW_HAS(&kube_infd_view, a, struct kube_infd, prefill));
    assert_true(view_equal(&kube_infd_view, a, a));
    json_t *o = view_encode(&kube_infd_view, a);
    assert_int_equal(json_int_at(o, "spec.decode.replicas", -1), 0);
    json_decref(o);
    free(a);
    free(b);
}

static void a_wrong_type_is_refused_with_its_path(void **state)
{
    static const char *const bad[][2] = {
        {"{\"metadata\":{\"name\":\"x\"},\"spec\":{\"decode\":{\"replicas\":\"two\"}}}",
         "replicas: expected a whole number"},
        {"{\"metadata\":{\"name\":7}}", "name: expected a string"},
        {"{\"metadata\":{}}", "metadata.name is missing"},
        {"{\"metadata\":{\"name\":\"x\"},\"status\":{\"conditions\":[{\"type\":\"Ready\"}]}}",
         "conditions[0]"},
        {"{\"metadata\":{\"name\":\"x\",\"labels\":{\"a\":{}}}}",
         "labels: expected an object of strings"},
        {"{\"metadata\":{\"name\":\"x\",\"creationTimestamp\":\"yesterday\"}}", "RFC 3339"},
        {"[]", "expected an object"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e = {0};
        assert_null(decode(bad[i][0], &e));
        if (!strstr(e.msg, bad[i][1]))
            fail_msg("\"%s\" lacks \"%s\"", e.msg, bad[i][1]);
    }
}

static void numbers_may_be_strings_and_the_other_way_round(void **state)
{
    struct err e = {0};
    (void)state;
    struct kube_infd *d = decode(
        "{\"metadata\":{\"name\":\"x\"},\"spec\":{\"decode\":{\"replicas\":\"3\",\"resources\":"
        "{\"limits\":{\"cpu\":2,\"memory\":\"1Gi\"}}}}}",
        &e);
    assert_non_null(d);
    assert_int_equal(d->decode.replicas, 3);
    assert_string_equal(view_map_get(&d->decode.limits, "cpu"), "2");
    assert_string_equal(view_map_get(&d->decode.limits, "memory"), "1Gi");
    free(d);
}

static void secrets_are_decoded_and_encoded(void **state)
{
    struct err e = {0};
    (void)state;
    json_t *o = json_parse(
        STR("{\"metadata\":{\"name\":\"x\"},\"data\":{\"secret\":\"aGVsbG8=\"}}"), 1000, 0, &e);
    struct kube_secret *s = view_decode(&kube_secret_view, o, &e);
    assert_non_null(s);
    assert_string_equal(s->secret, "hello");
    json_t *back = view_encode(&kube_secret_view, s);
    assert_true(json_equal(o, back));
    json_decref(o);
    json_decref(back);
    free(s);
    static const char *const bad[] = {"aGVsbG8", "a===", "aGV=bG8=", "aG*sbG8="};
    for (size_t i = 0; i < 4; i++) {
        o = json_pack("{s:{s:s}, s:{s:s}}", "metadata", "name", "x", "data", "secret", bad[i]);
        assert_null(view_decode(&kube_secret_view, o, &e));
        json_decref(o);
    }
}

static void yaml_that_could_grow_or_hide_is_refused(void **state)
{
    static const char *const bad[][2] = {
        {"a: &x [1]\nb: *x\n", "anchors"},
        {"a: 1\na: 2\n", "twice"},
        {"a: [1\n", "line"},
        {"{1: 2}: 3\n", "key"},
        {"a: 1\n---\nb: 2\n", "one YAML document"},
    };
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct err){0};
        assert_null(yaml_parse(str_c(bad[i][0]), 1000, &e));
        if (!strstr(e.msg, bad[i][1]))
            fail_msg("\"%s\" lacks \"%s\"", e.msg, bad[i][1]);
    }
    char deep[500];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    assert_null(yaml_parse((struct str){deep, 400}, 1000, &e));
}

static void plain_scalars_get_the_types_of_the_core_schema(void **state)
{
    struct err e = {0};
    (void)state;
    json_t *o = yaml_parse(STR("i: 12\nf: 1.5\nb: true\nn: ~\ns: 1Gi\nq: \"12\"\ne:\nd: "
                               "2026-11-30\nm: |\n  two\n  lines\n"),
                           1000, &e);
    assert_non_null(o);
    assert_int_equal(json_int_at(o, "i", 0), 12);
    assert_true(json_is_real(json_at(o, "f")));
    assert_true(json_is_true(json_at(o, "b")));
    assert_true(json_is_null(json_at(o, "n")));
    assert_string_equal(json_str_at(o, "s", ""), "1Gi");
    assert_string_equal(json_str_at(o, "q", ""), "12");
    assert_true(json_is_null(json_at(o, "e")));
    assert_string_equal(json_str_at(o, "d", ""), "2026-11-30");
    assert_string_equal(json_str_at(o, "m", ""), "two\nlines\n");
    json_decref(o);
}

static void durations_are_read_with_their_unit(void **state)
{
    uint64_t ns = 7;
    (void)state;
    assert_int_equal(kube_duration_ns("500ms", 1, &ns), 0);
    assert_int_equal(ns, 500000000);
    assert_int_equal(kube_duration_ns("1.5s", 1, &ns), 0);
    assert_int_equal(ns, 1500000000);
    assert_int_equal(kube_duration_ns("2m", 1, &ns), 0);
    assert_int_equal(ns, 120000000000);
    assert_int_equal(kube_duration_ns(NULL, 9, &ns), 0);
    assert_int_equal(ns, 9);
    assert_true(kube_duration_ns("fast", 1, &ns) < 0);
    assert_true(kube_duration_ns("-1s", 1, &ns) < 0);
    assert_int_equal(ns, 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_of_inferencedeployment_is_its_schema),
        cmocka_unit_test(the_table_of_workerpool_is_its_schema),
        cmocka_unit_test(the_table_of_nodeinventory_is_its_schema),
        cmocka_unit_test(samples_survive_a_round_trip_through_the_table),
        cmocka_unit_test(absent_differs_from_zero),
        cmocka_unit_test(a_wrong_type_is_refused_with_its_path),
        cmocka_unit_test(numbers_may_be_strings_and_the_other_way_round),
        cmocka_unit_test(secrets_are_decoded_and_encoded),
        cmocka_unit_test(yaml_that_could_grow_or_hide_is_refused),
        cmocka_unit_test(plain_scalars_get_the_types_of_the_core_schema),
        cmocka_unit_test(durations_are_read_with_their_unit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
