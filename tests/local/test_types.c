#include "local/types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const json_t *walk(const json_t *n, const char *path)
{
    struct str rest = str_c(path), head;
    while (n && rest.n) {
        rest = str_cut(rest, '.', &head);
        CLEANUP(free_charp) char *f = str_dup(head);
        n = strcmp(f, "[]") == 0 ? types_items(n) : types_field(n, f);
    }
    return types_resolve(n);
}

static void pod_containers_merge_by_name_and_ports_by_port_and_protocol(void **state)
{
    (void)state;
    const json_t *keys, *pod = types_kind("", "v1", "Pod");
    assert_non_null(pod);
    assert_int_equal(types_list_kind(walk(pod, "spec.containers"), &keys), TYPES_MAP);
    assert_string_equal(json_string_value(json_array_get(keys, 0)), "name");
    assert_int_equal(types_list_kind(walk(pod, "spec.containers.[].ports"), &keys), TYPES_MAP);
    assert_int_equal(json_array_size(keys), 2);
    assert_int_equal(types_list_kind(walk(pod, "spec.tolerations"), &keys), TYPES_ATOMIC);
    assert_int_equal(types_list_kind(walk(pod, "metadata.finalizers"), &keys), TYPES_SET);
}

static void names_resolve_within_their_own_group_first(void **state)
{
    (void)state;
    assert_non_null(walk(types_kind("", "v1", "Event"), "involvedObject.name"));
    assert_non_null(walk(types_kind("events.k8s.io", "v1", "Event"), "regarding.name"));
    assert_null(walk(types_kind("events.k8s.io", "v1", "Event"), "involvedObject"));
    assert_true(types_is_atomic_map(walk(types_kind("apps", "v1", "Deployment"), "spec.selector")));
}

static void unknown_fields_and_kinds_are_absent(void **state)
{
    (void)state;
    assert_null(types_kind("apps", "v1", "Nothing"));
    assert_null(walk(types_kind("", "v1", "Pod"), "spec.nope"));
    assert_non_null(walk(types_kind("", "v1", "ConfigMap"), "data.anything"));
}

static void every_reference_resolves(void **state)
{
    (void)state;
    const char *name, *field;
    json_t *schema, *prop;
    json_object_foreach ((json_t *)types_components(), name, schema) {
        json_object_foreach (json_object_get(schema, "properties"), field, prop) {
            const json_t *r = types_resolve(prop);
            assert_null(json_object_get(r, "$ref"));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pod_containers_merge_by_name_and_ports_by_port_and_protocol),
        cmocka_unit_test(names_resolve_within_their_own_group_first),
        cmocka_unit_test(unknown_fields_and_kinds_are_absent),
        cmocka_unit_test(every_reference_resolves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
