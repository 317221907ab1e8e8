/* What a pod's affinity requires of a node. */
#include "controller/affinity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

#define TERMS(t)                                                                                   \
    "{\"nodeAffinity\":{\"requiredDuringSchedulingIgnoredDuringExecution\":{"                      \
    "\"nodeSelectorTerms\":"                                                                       \
    "[" t "]}}}"
#define LABEL(r)             "{\"matchExpressions\":[" r "]}"
#define REQ(key, op, values) "{\"key\":\"" key "\",\"operator\":\"" op "\",\"values\":[" values "]}"

static const struct {
    const char *affinity;
    bool allowed;
} cases[] = {
    {"null", true},
    {"{}", true},
    {"{\"podAffinity\":{}}", true},
    {TERMS(""), false},
    {TERMS("{}"), false}, /* a term without requirements matches nothing */
    {TERMS(LABEL(REQ("zone", "In", "\"a\",\"b\""))), true},
    {TERMS(LABEL(REQ("zone", "In", "\"c\""))), false},
    {TERMS(LABEL(REQ("zone", "NotIn", "\"a\""))), false},
    {TERMS(LABEL(REQ("rack", "NotIn", "\"a\""))), true}, /* it has none */
    {TERMS(LABEL(REQ("rack", "In", "\"a\""))), false},
    {TERMS(LABEL(REQ("zone", "Exists", ""))), true},
    {TERMS(LABEL(REQ("rack", "Exists", ""))), false},
    {TERMS(LABEL(REQ("rack", "DoesNotExist", ""))), true},
    {TERMS(LABEL(REQ("zone", "DoesNotExist", ""))), false},
    {TERMS(LABEL(REQ("gpus", "Gt", "\"7\""))), true},
    {TERMS(LABEL(REQ("gpus", "Gt", "\"8\""))), false},
    {TERMS(LABEL(REQ("gpus", "Lt", "\"9\""))), true},
    {TERMS(LABEL(REQ("zone", "Gt", "\"1\""))), false}, /* not a number */
    {TERMS(LABEL(REQ("gpus", "Gt", "\"1\",\"2\""))), false},
    {TERMS(LABEL(REQ("zone", "Near", "\"a\""))), false},
    {TERMS(LABEL(REQ("zone", "In", "\"a\"") "," REQ("gpus", "In", "\"4\""))), false}, /* and */
    {TERMS(LABEL(REQ("zone", "In", "\"c\"")) "," LABEL(REQ("gpus", "In", "\"8\""))), true}, /* or */
    {TERMS("{\"matchFields\":[" REQ("metadata.name", "In", "\"n1\"") "]}"), true},
    {TERMS("{\"matchFields\":[" REQ("metadata.name", "NotIn", "\"n1\"") "]}"), false},
    {TERMS("{\"matchFields\":[" REQ("spec.x", "In", "\"n1\"") "]}"), false},
};

static void required_node_affinity_is_read_as_the_scheduler_does(void **state)
{
    struct view_pair labels[] = {{"zone", "a"}, {"gpus", "8"}};
    struct kube_node n = {.meta = {.name = "n1", .labels = {.items = labels, .n = 2}}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *o = json_loads(cases[i].affinity, JSON_DECODE_ANY, NULL);
        assert_non_null(o);
        if (affinity_allows(o, &n) != cases[i].allowed)
            fail_msg("%s: %s", cases[i].affinity, cases[i].allowed ? "refused" : "allowed");
        json_decref(o);
    }
    assert_true(affinity_allows(NULL, &n));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(required_node_affinity_is_read_as_the_scheduler_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
