/* Field sets and server-side apply. */
#include "local/fieldset.h"
#include "local/managed.h"
#include "local/types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static const struct resource pods = {.group = "",
                                     .version = "v1",
                                     .plural = "pods",
                                     .singular = "pod",
                                     .kind = "Pod",
                                     .flags = R_NAMESPACED | R_STATUS};

static struct resource pod_resource(void)
{
    struct resource r = pods;
    r.schema = types_kind("", "v1", "Pod");
    return r;
}

static json_t *js(const char *text)
{
    json_error_t e;
    json_t *o = json_loads(text, 0, &e);
    if (!o)
        fail_msg("%s: %s", e.text, text);
    return o;
}

static void assert_json(const json_t *have, const char *want)
{
    json_t *w = js(want);
    if (!json_equal((json_t *)have, w)) {
        char *text = json_dumps(have, JSON_SORT_KEYS);
        fail_msg("have %s\nwant %s", text, want);
    }
    json_decref(w);
}

static void leaves_of_lists_with_keys_name_their_items(void **state)
{
    (void)state;
    json_t *v = js("{\"spec\":{\"containers\":[{\"name\":\"a\",\"image\":\"x\",\"ports\":[{"
                   "\"containerPort\":80}],"
                   "\"args\":[\"1\"]}],\"tolerations\":[{\"key\":\"k\"}]},\"metadata\":{"
                   "\"finalizers\":[\"f/g\"]}}");
    json_t *s = fieldset_of(types_kind("", "v1", "Pod"), v);
    assert_json(
        s,
        "{\"f:spec\":{\"f:containers\":{\"k:{\\\"name\\\":\\\"a\\\"}\":{\".\":{},\"f:name\":{},\"f:"
        "image\":{},"
        "\"f:args\":{},\"f:ports\":{\"k:{\\\"containerPort\\\":80,\\\"protocol\\\":\\\"TCP\\\"}\":"
        "{\".\":{},\"f:containerPort\":{}}}}},\"f:tolerations\":{}},"
        "\"f:metadata\":{\"f:finalizers\":{\"v:\\\"f/g\\\"\":{}}}}");
    json_decref(v);
    json_decref(s);
}

static void a_difference_of_two_values_names_what_changed_and_what_went(void **state)
{
    (void)state;
    json_t *a = js("{\"data\":{\"x\":\"1\",\"y\":\"2\"}}"),
           *b = js("{\"data\":{\"x\":\"3\",\"z\":\"4\"}}");
    json_t *changed = json_object(), *removed = json_object();
    fieldset_compare(types_kind("", "v1", "ConfigMap"), a, b, changed, removed);
    assert_json(changed, "{\"f:data\":{\"f:x\":{},\"f:z\":{}}}");
    assert_json(removed, "{\"f:data\":{\"f:y\":{}}}");
    json_decref(a);
    json_decref(b);
    json_decref(changed);
    json_decref(removed);
}

static void sets_subtract_intersect_and_unite(void **state)
{
    (void)state;
    json_t *a = js("{\"f:a\":{\".\":{},\"f:b\":{},\"f:c\":{}}}"), *b = js("{\"f:a\":{\"f:b\":{}}}");
    json_t *both = fieldset_intersect(a, b);
    assert_json(both, "{\"f:a\":{\"f:b\":{}}}");
    fieldset_subtract(a, b);
    assert_json(a, "{\"f:a\":{\".\":{},\"f:c\":{}}}");
    fieldset_union(a, b);
    assert_json(a, "{\"f:a\":{\".\":{},\"f:b\":{},\"f:c\":{}}}");
    json_t *all = js("{\"f:a\":{}}");
    fieldset_subtract(b, all);
    assert_json(b, "{\"f:a\":{\"f:b\":{}}}"); /* the parent is another member than its child */
    json_decref(a);
    json_decref(b);
    json_decref(both);
    json_decref(all);
}

static json_t *apply(const json_t *live, const char *config, const char *manager, bool force,
                     json_t **st)
{
    struct resource r = pod_resource();
    struct managed_writer w = {
        .manager = manager, .sub = "", .now = "2026-01-01T00:00:00Z", .force = force};
    json_t *c = js(config), *out = NULL;
    *st = NULL;
    int rc = managed_apply(&r, live, c, &w, &out, st);
    json_decref(c);
    assert_int_equal(rc == 0, out != NULL);
    return out;
}

static void an_applier_that_drops_a_field_removes_it_unless_another_owns_it(void **state)
{
    (void)state;
    json_t *st;
    json_t *a = apply(NULL, "{\"metadata\":{\"name\":\"p\",\"labels\":{\"x\":\"1\",\"y\":\"2\"}}}",
                      "m1", false, &st);
    json_t *b =
        apply(a, "{\"metadata\":{\"name\":\"p\",\"labels\":{\"y\":\"2\"}}}", "m2", false, &st);
    json_t *c = apply(b, "{\"metadata\":{\"name\":\"p\"}}", "m1", false, &st);
    assert_json(json_at(c, "metadata.labels"), "{\"y\":\"2\"}");
    json_t *d = apply(c, "{\"metadata\":{\"name\":\"p\"}}", "m2", false, &st);
    assert_null(json_at(d, "metadata.labels"));
    assert_null(json_at(d, "metadata.managedFields"));
    json_decref(a);
    json_decref(b);
    json_decref(c);
    json_decref(d);
}

static void another_value_is_a_conflict_and_force_takes_the_field(void **state)
{
    (void)state;
    json_t *st;
    json_t *a =
        apply(NULL, "{\"metadata\":{\"name\":\"p\",\"labels\":{\"x\":\"1\"}}}", "m1", false, &st);
    const char *other = "{\"metadata\":{\"name\":\"p\",\"labels\":{\"x\":\"2\"}}}";
    assert_null(apply(a, other, "m2", false, &st));
    assert_int_equal(json_int_at(st, "code", 0), 409);
    assert_string_equal(json_str_at(st, "message", ""),
                        "Apply failed with 1 conflict: conflict with \"m1\": .metadata.labels.x");
    assert_string_equal(json_str_at(st, "details.causes.0.reason", ""), "FieldManagerConflict");
    json_decref(st);
    json_t *b = apply(a, other, "m2", true, &st);
    assert_int_equal(json_array_size(json_at(b, "metadata.managedFields")), 1);
    assert_string_equal(json_str_at(b, "metadata.managedFields.0.manager", ""), "m2");
    json_decref(a);
    json_decref(b);
}

static void items_of_a_list_map_belong_to_who_applied_them(void **state)
{
    (void)state;
    json_t *st;
    json_t *a = apply(NULL,
                      "{\"metadata\":{\"name\":\"p\"},\"spec\":{\"containers\":[{\"name\":\"a\","
                      "\"image\":\"1\"}]}}",
                      "m1", false, &st);
    json_t *b = apply(a,
                      "{\"metadata\":{\"name\":\"p\"},\"spec\":{\"containers\":[{\"name\":\"b\","
                      "\"image\":\"2\"}]}}",
                      "m2", false, &st);
    assert_json(json_at(b, "spec.containers"),
                "[{\"name\":\"a\",\"image\":\"1\"},{\"name\":\"b\",\"image\":\"2\"}]");
    json_t *c = apply(b, "{\"metadata\":{\"name\":\"p\"}}", "m1", false, &st);
    assert_json(json_at(c, "spec.containers"), "[{\"name\":\"b\",\"image\":\"2\"}]");
    json_decref(a);
    json_decref(b);
    json_decref(c);
}

static void an_update_takes_fields_from_appliers_silently(void **state)
{
    (void)state;
    json_t *st;
    struct resource r = pod_resource();
    struct managed_writer w = {.manager = "edit", .sub = "", .now = "2026-01-02T00:00:00Z"};
    json_t *a = apply(NULL, "{\"metadata\":{\"name\":\"p\",\"labels\":{\"x\":\"1\",\"y\":\"1\"}}}",
                      "m1", false, &st);
    json_t *b = json_deep_copy(a);
    assert_int_equal(json_put(b, "metadata.labels.x", json_string("9")), 0);
    managed_update(&r, a, b, &w);
    assert_json(json_at(b, "metadata.managedFields.0.fieldsV1"),
                "{\"f:metadata\":{\"f:labels\":{\"f:y\":{}}}}");
    assert_json(json_at(b, "metadata.managedFields.1.fieldsV1"),
                "{\"f:metadata\":{\"f:labels\":{\"f:x\":{}}}}");
    assert_string_equal(json_str_at(b, "metadata.managedFields.1.operation", ""), "Update");
    json_decref(a);
    json_decref(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(leaves_of_lists_with_keys_name_their_items),
        cmocka_unit_test(a_difference_of_two_values_names_what_changed_and_what_went),
        cmocka_unit_test(sets_subtract_intersect_and_unite),
        cmocka_unit_test(an_applier_that_drops_a_field_removes_it_unless_another_owns_it),
        cmocka_unit_test(another_value_is_a_conflict_and_force_takes_the_field),
        cmocka_unit_test(items_of_a_list_map_belong_to_who_applied_them),
        cmocka_unit_test(an_update_takes_fields_from_appliers_silently),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
