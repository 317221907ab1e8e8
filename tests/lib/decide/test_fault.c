/* Device faults to actions, and what a node's cache of models gives up. */
#include "lib/decide/cache.h"
#include "lib/decide/fault.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define MIN_NS (60ull * 1000000000)

static enum fault_action xid(uint64_t code)
{
    char reason[160];
    struct fault f = {.kind = FAULT_XID, .code = code, .at_ns = 1000 * MIN_NS};
    enum fault_action a = fault_decide(&f, NULL, 0, reason);
    assert_true(strlen(reason) > 8);
    return a;
}

static void a_device_fault_has_the_action_of_its_code(void **state)
{
    (void)state;
    assert_int_equal(xid(13), FAULT_RESTART);
    assert_int_equal(xid(31), FAULT_RESTART);
    assert_int_equal(xid(45), FAULT_NONE);
    assert_int_equal(xid(48), FAULT_QUARANTINE_DEVICE);
    assert_int_equal(xid(63), FAULT_NONE);
    assert_int_equal(xid(79), FAULT_QUARANTINE_NODE);
    assert_int_equal(xid(94), FAULT_RESTART);
    assert_int_equal(xid(95), FAULT_QUARANTINE_DEVICE);
    assert_int_equal(xid(119), FAULT_QUARANTINE_DEVICE);
    assert_int_equal(xid(123456), FAULT_DRAIN); /* not known: away from it */
    for (uint64_t i = 0; i < 300; i++) {
        const struct fault_rule *r = fault_xid(i);
        assert_true(!r || (r->xid == i && *r->what && r->action <= FAULT_QUARANTINE_NODE));
        if (r)
            assert_int_equal(fault_action_parse(fault_action_name(r->action)), r->action);
    }
}

static void restarts_that_do_not_help_become_a_drain_and_a_quarantine(void **state)
{
    struct fault earlier[2] = {{FAULT_XID, 13, 998 * MIN_NS}, {FAULT_XID, 31, 999 * MIN_NS}};
    struct fault now = {FAULT_XID, 13, 1000 * MIN_NS};
    char reason[160];
    (void)state;
    assert_int_equal(fault_decide(&now, earlier, 1, reason), FAULT_RESTART);
    assert_int_equal(fault_decide(&now, earlier, 2, reason), FAULT_DRAIN);
    earlier[0].at_ns = 900 * MIN_NS; /* more than an hour ago */
    assert_int_equal(fault_decide(&now, earlier, 2, reason), FAULT_RESTART);
    struct fault drains[1] = {{FAULT_XID, 92, 990 * MIN_NS}};
    now = (struct fault){FAULT_XID, 121, 1000 * MIN_NS};
    assert_int_equal(fault_decide(&now, drains, 0, reason), FAULT_DRAIN);
    assert_int_equal(fault_decide(&now, drains, 1, reason), FAULT_QUARANTINE_DEVICE);
    assert_non_null(strstr(reason, "again within an hour"));
}

static void other_signs_have_actions_too(void **state)
{
    char reason[160];
    const struct {
        struct fault f;
        enum fault_action a;
    } cases[] = {{{FAULT_ECC_DOUBLE, 2, 1}, FAULT_QUARANTINE_DEVICE},
                 {{FAULT_REMAP_FAILED, 0, 1}, FAULT_QUARANTINE_DEVICE},
                 {{FAULT_REMAP_PENDING, 0, 1}, FAULT_NONE},
                 {{FAULT_THROTTLED, 5, 1}, FAULT_NONE},
                 {{FAULT_THROTTLED, 601, 1}, FAULT_DRAIN},
                 {{FAULT_LOST, 0, 1}, FAULT_QUARANTINE_NODE}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(fault_decide(&cases[i].f, NULL, 0, reason), cases[i].a);
}

static void the_cache_drops_the_least_recently_used_and_no_more_than_it_must(void **state)
{
    uint32_t v[4];
    uint64_t could;
    const struct cache_entry e[] = {
        {30, 3, false, false}, {20, 1, false, false}, {10, 2, false, false}};
    (void)state;
    assert_int_equal(cache_evict(e, 3, 100, 40, v, &could), 0);
    assert_int_equal(cache_evict(e, 3, 100, 45, v, &could), 1);
    assert_int_equal(v[0], 1);
    assert_int_equal(cache_evict(e, 3, 100, 65, v, &could), 2);
    assert_int_equal(v[1], 2);
    assert_int_equal(cache_evict(e, 3, 100, 100, v, &could), 3);
    assert_int_equal(could, 100);
}

static void the_cache_never_outgrows_its_budget(void **state)
{
    uint32_t v[2];
    uint64_t could;
    const struct cache_entry e[] = {{60, 1, true, false}, {30, 2, false, false}};
    (void)state;
    assert_int_equal(cache_evict(e, 2, 100, 50, v, &could), -ENOSPC);
    assert_int_equal(could, 40);
    assert_int_equal(cache_evict(e, 2, 100, 40, v, &could), 1);
    assert_int_equal(v[0], 1);
    assert_int_equal(cache_evict(e, 0, 10, 11, v, &could), -ENOSPC);
}

static void a_model_in_use_is_never_dropped(void **state)
{
    uint32_t v[2];
    uint64_t could;
    const struct cache_entry e[] = {{50, 1, true, false}, {50, 2, false, false}};
    (void)state;
    assert_int_equal(cache_evict(e, 2, 100, 50, v, &could), 1);
    assert_int_equal(v[0], 1); /* not the older one, which is in use */
    assert_int_equal(cache_evict(e, 2, 100, 60, v, &could), -ENOSPC);
}

static void a_model_that_this_node_should_keep_is_never_dropped(void **state)
{
    uint32_t v[2];
    uint64_t could;
    const struct cache_entry e[] = {{50, 1, false, true}, {50, 2, false, false}};
    (void)state;
    assert_int_equal(cache_evict(e, 2, 100, 50, v, &could), 1);
    assert_int_equal(v[0], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_fault_has_the_action_of_its_code),
        cmocka_unit_test(restarts_that_do_not_help_become_a_drain_and_a_quarantine),
        cmocka_unit_test(other_signs_have_actions_too),
        cmocka_unit_test(the_cache_drops_the_least_recently_used_and_no_more_than_it_must),
        cmocka_unit_test(the_cache_never_outgrows_its_budget),
        cmocka_unit_test(a_model_in_use_is_never_dropped),
        cmocka_unit_test(a_model_that_this_node_should_keep_is_never_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
