/* Structural schemas and strategic merge patch: pruning, defaults, validation, list merges. */
#include "local/openapi.h"
#include "local/schema.h"
#include "local/smp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static const char schema_text[] =
    "{\"type\":\"object\",\"required\":[\"spec\"],\"properties\":{\"spec\":{\"type\":\"object\","
    "\"required\":[\"model\"],"
    "\"x-kubernetes-validations\":[{\"rule\":\"!has(self.min) || self.min <= "
    "self.max\",\"message\":\"min must not be above max\"},"
    "{\"rule\":\"self.model == oldSelf.model\",\"message\":\"model is immutable\"}],"
    "\"properties\":{\"model\":{\"type\":\"string\",\"maxLength\":8,\"pattern\":\"^[a-z]+$\"},"
    "\"replicas\":{\"type\":\"integer\",\"format\":\"int32\",\"minimum\":0,\"maximum\":10,"
    "\"default\":1},"
    "\"min\":{\"type\":\"integer\"},\"max\":{\"type\":\"integer\",\"default\":4},"
    "\"mode\":{\"type\":\"string\",\"enum\":[\"auto\",\"never\"],\"default\":\"auto\"},"
    "\"size\":{\"x-kubernetes-int-or-string\":true},"
    "\"any\":{\"type\":\"object\",\"x-kubernetes-preserve-unknown-fields\":true},"
    "\"labels\":{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}},"
    "\"tags\":{\"type\":\"array\",\"x-kubernetes-list-type\":\"set\",\"maxItems\":3,\"items\":{"
    "\"type\":\"string\"}},"
    "\"roles\":{\"type\":\"array\",\"x-kubernetes-list-type\":\"map\",\"x-kubernetes-list-map-"
    "keys\":[\"name\"],"
    "\"items\":{\"type\":\"object\",\"required\":[\"name\"],\"properties\":{\"name\":{\"type\":"
    "\"string\"},"
    "\"n\":{\"type\":\"integer\",\"default\":2,\"x-kubernetes-validations\":[{\"rule\":\"self >= "
    "oldSelf\"}]}}}}}}}}";

static struct schema *schema(void)
{
    struct field_errors errs = {0};
    struct schema *s = NULL;
    CLEANUP(json_decrefp) json_t *j = json_loads(schema_text, 0, NULL);
    assert_non_null(j);
    int rc = schema_compile(j, &s, &errs);
    if (rc)
        fail_msg("%s: %s", errs.v[0].path, errs.v[0].message);
    return s;
}

static char *problems(const char *text, const char *old_text)
{
    struct schema *s = schema();
    struct field_errors errs = {0};
    struct buf b;
    CLEANUP(json_decrefp) json_t *v = json_loads(text, 0, NULL);
    CLEANUP(json_decrefp) json_t *old = old_text ? json_loads(old_text, 0, NULL) : NULL;
    buf_init(&b, 65536);
    schema_default(s, v);
    int rc = schema_validate(s, v, old, &errs);
    assert_int_equal(rc != 0, errs.n > 0);
    assert_int_equal(buf_cstr(&b, ""), 0);
    for (size_t i = 0; i < errs.n; i++)
        assert_int_equal(buf_printf(&b, "%s: %s\n", errs.v[i].path, errs.v[i].message), 0);
    field_errors_fini(&errs);
    schema_free(s);
    return buf_take(&b);
}

static void each_problem_is_named_with_its_path(void **state)
{
    static const struct {
        const char *text, *old, *want;
    } cases[] = {
        {"{\"spec\":{\"model\":\"abc\"}}", NULL, ""},
        {"{}", NULL, "spec: Required value\n"},
        {"{\"spec\":{}}", NULL, "spec.model: Required value\n"},
        {"{\"spec\":{\"model\":5}}", NULL,
         "spec.model: Invalid value: \"integer\": spec.model in body must be of type string: "
         "\"integer\"\n"},
        {"{\"spec\":{\"model\":\"a\",\"replicas\":11}}", NULL,
         "spec.replicas: Invalid value: 11: spec.replicas in body should be less than or equal to "
         "10\n"},
        {"{\"spec\":{\"model\":\"a\",\"replicas\":-1}}", NULL,
         "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal "
         "to 0\n"},
        {"{\"spec\":{\"model\":\"ABC\"}}", NULL,
         "spec.model: Invalid value: \"ABC\": spec.model in body should match '^[a-z]+$'\n"},
        {"{\"spec\":{\"model\":\"abcdefghi\"}}", NULL,
         "spec.model: Too long: may not be more than 8 bytes\n"},
        {"{\"spec\":{\"model\":\"a\",\"mode\":\"x\"}}", NULL,
         "spec.mode: Unsupported value: \"x\": supported values: \"auto\", \"never\"\n"},
        {"{\"spec\":{\"model\":\"a\",\"min\":5}}", NULL,
         "spec: Invalid value: \"object\": min must not be above max\n"},
        {"{\"spec\":{\"model\":\"b\"}}", "{\"spec\":{\"model\":\"a\"}}",
         "spec: Invalid value: \"object\": model is immutable\n"},
        {"{\"spec\":{\"model\":\"a\",\"size\":true}}", NULL,
         "spec.size: Invalid value: \"boolean\": spec.size in body must be of type integer,string: "
         "\"boolean\"\n"},
        {"{\"spec\":{\"model\":\"a\",\"size\":\"5Gi\",\"labels\":{\"x\":\"y\"}}}", NULL, ""},
        {"{\"spec\":{\"model\":\"a\",\"labels\":{\"x\":1}}}", NULL,
         "spec.labels.x: Invalid value: \"integer\": spec.labels.x in body must be of type string: "
         "\"integer\"\n"},
        {"{\"spec\":{\"model\":\"a\",\"tags\":[\"x\",\"x\"]}}", NULL,
         "spec.tags[1]: Duplicate value: \"x\"\n"},
        {"{\"spec\":{\"model\":\"a\",\"tags\":[\"a\",\"b\",\"c\",\"d\"]}}", NULL,
         "spec.tags: Too many: 4: must have at most 3 items\n"},
        {"{\"spec\":{\"model\":\"a\",\"roles\":[{\"name\":\"p\"},{\"name\":\"p\",\"n\":3}]}}", NULL,
         "spec.roles[1]: Duplicate value: {\"name\":\"p\",\"n\":3}\n"},
        {"{\"spec\":{\"model\":\"a\",\"roles\":[{\"n\":3}]}}", NULL,
         "spec.roles[0].name: Required value\n"},
        {"{\"spec\":{\"model\":\"a\",\"roles\":[{\"name\":\"p\",\"n\":1}]}}",
         "{\"spec\":{\"model\":\"a\",\"roles\":[{\"name\":\"q\",\"n\":1},{\"name\":\"p\",\"n\":2}]}"
         "}",
         "spec.roles[0].n: Invalid value: 1: failed rule: self >= oldSelf\n"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CLEANUP(free_charp) char *got = problems(cases[i].text, cases[i].old);
        assert_string_equal(got, cases[i].want);
    }
}

static void defaults_fill_and_unknown_fields_go(void **state)
{
    struct schema *s = schema();
    struct field_errors dropped = {0};
    struct buf b;
    (void)state;
    CLEANUP(json_decrefp)
    json_t *v = json_loads(
        "{\"apiVersion\":\"x/v1\",\"kind\":\"X\",\"metadata\":{\"name\":\"n\",\"odd\":1},"
        "\"spec\":{\"model\":\"a\",\"nope\":1,\"any\":{\"kept\":{\"x\":1}},\"roles\":[{\"name\":"
        "\"p\",\"bad\":1}]},\"extra\":2}",
        0, NULL);
    schema_prune(s, v, &dropped);
    schema_default(s, v);
    buf_init(&b, 65536);
    assert_int_equal(json_write(v, true, &b), 0);
    assert_string_equal(b.data, "{\"apiVersion\":\"x/"
                                "v1\",\"kind\":\"X\",\"metadata\":{\"name\":\"n\",\"odd\":1},"
                                "\"spec\":{\"any\":{\"kept\":{\"x\":1}},"
                                "\"max\":4,\"mode\":\"auto\",\"model\":\"a\",\"replicas\":1,"
                                "\"roles\":[{\"n\":2,\"name\":\"p\"}]}}");
    assert_int_equal(dropped.n, 3);
    field_errors_fini(&dropped);
    buf_fini(&b);
    schema_free(s);
}

static void a_schema_that_cannot_be_honoured_is_refused(void **state)
{
    static const char *const bad[] = {
        "{\"properties\":{}}",
        "{\"type\":\"strange\"}",
        "{\"type\":\"object\",\"properties\":{\"a\":{}}}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\"}}}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"(\"}}}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":"
        "\"object\"},\"x-kubernetes-list-type\":\"map\"}}}",
        "{\"type\":\"object\",\"x-kubernetes-validations\":[{\"rule\":\"self.nope == 1\"}]}",
        "{\"type\":\"object\",\"x-kubernetes-validations\":[{\"rule\":\"frob(self)\"}]}",
        "{\"type\":\"object\",\"x-kubernetes-validations\":[{\"rule\":\"1 + 1\"}]}",
        "{\"type\":\"object\",\"x-kubernetes-validations\":[{\"rule\":\"size(self)\"}]}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":"
        "\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}}}}},"
        "\"x-kubernetes-validations\":[{\"rule\":\"self.a.all(i, i.y > 0)\"}]}",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct field_errors errs = {0};
        struct schema *s;
        CLEANUP(json_decrefp) json_t *j = json_loads(bad[i], 0, NULL);
        assert_non_null(j);
        if (schema_compile(j, &s, &errs) == 0)
            fail_msg("accepted: %s", bad[i]);
        assert_true(errs.n > 0);
        field_errors_fini(&errs);
    }
}

static void strategic_merges_follow_the_merge_keys(void **state)
{
    static const struct {
        const char *kind, *target, *patch, *want;
    } cases[] = {
        {"Pod",
         "{\"spec\":{\"containers\":[{\"name\":\"a\",\"image\":\"1\"},{\"name\":\"b\",\"image\":"
         "\"1\"}]}}",
         "{\"spec\":{\"containers\":[{\"name\":\"a\",\"image\":\"2\"}]}}",
         "{\"spec\":{\"containers\":[{\"image\":\"2\",\"name\":\"a\"},{\"image\":\"1\",\"name\":"
         "\"b\"}]}}"},
        {"apps/Deployment",
         "{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"a\"},{\"name\":\"b\"}]}}}"
         "}",
         "{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"b\",\"$patch\":\"delete\"}"
         "]}}}}",
         "{\"spec\":{\"template\":{\"spec\":{\"containers\":[{\"name\":\"a\"}]}}}}"},
        {"Pod",
         "{\"spec\":{\"containers\":[{\"name\":\"a\",\"env\":[{\"name\":\"X\",\"value\":\"1\"}],"
         "\"args\":[\"1\"]}]}}",
         "{\"spec\":{\"containers\":[{\"name\":\"a\",\"env\":[{\"name\":\"Y\",\"value\":\"2\"}],"
         "\"args\":[\"2\"]}]}}",
         "{\"spec\":{\"containers\":[{\"args\":[\"2\"],\"env\":[{\"name\":\"X\",\"value\":\"1\"},{"
         "\"name\":\"Y\",\"value\":\"2\"}],\"name\":\"a\"}]}}"},
        {"Pod", "{\"spec\":{\"tolerations\":[{\"key\":\"a\"}]}}",
         "{\"spec\":{\"tolerations\":[{\"key\":\"b\"}]}}",
         "{\"spec\":{\"tolerations\":[{\"key\":\"b\"}]}}"},
        {"ConfigMap", "{\"data\":{\"a\":\"1\",\"b\":\"2\"}}", "{\"data\":{\"a\":null,\"c\":\"3\"}}",
         "{\"data\":{\"b\":\"2\",\"c\":\"3\"}}"},
        {"ConfigMap", "{\"data\":{\"a\":\"1\"}}", "{\"data\":{\"$patch\":\"replace\",\"c\":\"3\"}}",
         "{\"data\":{\"c\":\"3\"}}"},
        {"Pod", "{\"metadata\":{\"finalizers\":[\"a\",\"b\"]}}",
         "{\"metadata\":{\"$deleteFromPrimitiveList/finalizers\":[\"a\"],\"finalizers\":[\"c\"]}}",
         "{\"metadata\":{\"finalizers\":[\"b\",\"c\"]}}"},
        {"Pod", "{\"spec\":{\"containers\":[{\"name\":\"a\"}]}}",
         "{\"spec\":{\"$setElementOrder/"
         "containers\":[{\"name\":\"b\"},{\"name\":\"a\"}],\"containers\":[{\"name\":\"b\"}]}}",
         "{\"spec\":{\"containers\":[{\"name\":\"b\"},{\"name\":\"a\"}]}}"},
        {"Pod", "{\"spec\":{\"volumes\":[{\"name\":\"v\",\"emptyDir\":{}}]}}",
         "{\"spec\":{\"volumes\":[{\"name\":\"v\",\"$retainKeys\":[\"name\",\"hostPath\"],"
         "\"hostPath\":{\"path\":\"/x\"}}]}}",
         "{\"spec\":{\"volumes\":[{\"hostPath\":{\"path\":\"/x\"},\"name\":\"v\"}]}}"},
        {"Service", "{\"spec\":{\"ports\":[{\"port\":80},{\"port\":81}]}}",
         "{\"spec\":{\"ports\":[{\"port\":80,\"name\":\"h\"}]}}",
         "{\"spec\":{\"ports\":[{\"name\":\"h\",\"port\":80},{\"port\":81}]}}"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = {0};
        struct buf b;
        CLEANUP(json_decrefp)
        json_t *t = json_loads(cases[i].target, 0, NULL), *p = json_loads(cases[i].patch, 0, NULL);
        buf_init(&b, 65536);
        assert_int_equal(smp_apply(t, p, cases[i].kind, &e), 0);
        assert_int_equal(json_write(t, true, &b), 0);
        assert_string_equal(b.data, cases[i].want);
        buf_fini(&b);
    }
    struct err e = {0};
    CLEANUP(json_decrefp)
    json_t *t = json_object(),
           *p = json_loads("{\"spec\":{\"containers\":[{\"image\":\"x\"}]}}", 0, NULL);
    assert_true(smp_apply(t, p, "Pod", &e) < 0);
    assert_non_null(strstr(e.msg, "merge key"));
}

static void openapi_documents_name_every_resource(void **state)
{
    (void)state;
    CLEANUP(json_decrefp) json_t *schema_json = json_loads(schema_text, 0, NULL);
    const struct openapi_resource r[] = {{"", "v1", "Pod", "pods", true, true, false, NULL},
                                         {"serving.baton.dev", "v1alpha1", "WorkerPool",
                                          "workerpools", true, true, true, schema_json}};
    CLEANUP(json_decrefp)
    json_t *index = openapi_v3_index(r, 2),
           *doc = openapi_v3_group("serving.baton.dev", "v1alpha1", r, 2);
    json_t *paths = json_object_get(index, "paths");
    assert_non_null(json_object_get(paths, "api/v1"));
    assert_non_null(json_object_get(paths, "apis/serving.baton.dev/v1alpha1"));
    json_t *schemas = json_at(doc, "components.schemas");
    assert_non_null(json_object_get(schemas, "dev.baton.serving.v1alpha1.WorkerPool"));
    assert_non_null(json_object_get(
        json_object_get(doc, "paths"),
        "/apis/serving.baton.dev/v1alpha1/namespaces/{namespace}/workerpools/{name}"));
    assert_null(openapi_v3_group("nope", "v1", r, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_problem_is_named_with_its_path),
        cmocka_unit_test(defaults_fill_and_unknown_fields_go),
        cmocka_unit_test(a_schema_that_cannot_be_honoured_is_refused),
        cmocka_unit_test(strategic_merges_follow_the_merge_keys),
        cmocka_unit_test(openapi_documents_name_every_resource),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
