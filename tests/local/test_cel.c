/* CEL: expressions against values worked out by hand from the language definition. */
#include "local/cel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

static const char self_text[] = "{\"replicas\":3,\"min\":1,\"max\":5,\"name\":\"chat-a\",\"list\":["
                                "1,2,3],\"roles\":[{\"n\":\"p\",\"x\":1},{\"n\":\"d\"}],"
                                "\"map\":{\"a\":1,\"b\":2},\"ratio\":0.5,\"on\":true,\"none\":null,"
                                "\"dash-ed\":7,\"text\":\"h\\u00e9llo\"}";

/* "true", "false", "error" (when evaluated) or "refused" (when compiled). */
static const char *run(const char *text, const char *old_text)
{
    struct err e = {0};
    struct cel *c;
    if (cel_compile(text, NULL, &c, &e))
        return "refused";
    CLEANUP(json_decrefp) json_t *self = json_loads(self_text, 0, NULL);
    CLEANUP(json_decrefp) json_t *old = old_text ? json_loads(old_text, 0, NULL) : NULL;
    int rc = cel_eval_bool(c, self, old, &e);
    cel_free(c);
    return rc == 1 ? "true" : rc == 0 ? "false" : "error";
}

static void expressions_have_the_values_of_the_specification(void **state)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        {"self.replicas == 3", "true"},
        {"self.replicas >= self.min && self.replicas <= self.max", "true"},
        {"1 + 2 * 3 == 7", "true"},
        {"(1 + 2) * 3 == 9", "true"},
        {"7 / 2 == 3 && 7 % 2 == 1 && -7 / 2 == -3", "true"},
        {"1 / 0 == 1", "error"},
        {"9223372036854775807 + 1 > 0", "error"},
        {"has(self.replicas) && !has(self.missing)", "true"},
        {"has(self.none)", "false"},
        {"self.missing == 1", "error"},
        {"self.missing == 1 || true", "true"},
        {"true || self.missing == 1", "true"},
        {"false && self.missing == 1", "false"},
        {"self.missing == 1 && false", "false"},
        {"self.missing == 1 || false", "error"},
        {"self.on ? self.replicas == 3 : self.missing == 1", "true"},
        {"'a' in self.map && !('c' in self.map)", "true"},
        {"2 in self.list && !(9 in self.list)", "true"},
        {"self.list[0] == 1 && self.map['b'] == 2", "true"},
        {"self.list[3] == 1", "error"},
        {"size(self.list) == 3 && self.list.size() == 3 && size(self.map) == 2", "true"},
        {"size(self.text) == 5", "true"},
        {"self.list.all(x, x > 0) && self.list.exists(x, x == 2)", "true"},
        {"self.list.exists_one(x, x > 1)", "false"},
        {"self.roles.all(r, has(r.x) || r.n == 'd')", "true"},
        {"self.roles.all(r, r.x == 1)", "error"},
        {"self.roles.exists(r, r.x == 1)", "true"},
        {"self.list.map(x, x * 2) == [2, 4, 6]", "true"},
        {"self.list.filter(x, x > 1).size() == 2", "true"},
        {"self.list.map(x, x > 1, x + 1) == [3, 4]", "true"},
        {"self.map.all(k, k in ['a', 'b'])", "true"},
        {"self.list.all(x, self.list.exists(y, y == x))", "true"},
        {"self.name.startsWith('chat') && self.name.endsWith('-a') && self.name.contains('at-')",
         "true"},
        {"self.name.matches('^[a-z]+-[a-z]$') && !self.name.matches('^\\\\d+$')", "true"},
        {"self.name.split('-') == ['chat', 'a'] && ['a', 'b'].join('/') == 'a/b'", "true"},
        {"self.name.replace('a', 'o') == 'chot-o' && self.name.substring(1, 3) == 'ha'", "true"},
        {"self.name.indexOf('t') == 3 && self.name.upperAscii() == 'CHAT-A' && ' x '.trim() == 'x'",
         "true"},
        {"int('12') == 12 && string(12) == '12' && double('1.5') == 1.5", "true"},
        {"int('x') == 1", "error"},
        {"self.ratio < 1.0 && self.ratio + 0.25 == 0.75", "true"},
        {"self.__dash__x == 1", "error"},
        {"self.dash__dash__ed == 7", "true"},
        {"quantity('1Gi').isGreaterThan(quantity('500Mi')) && isQuantity('5m') && !isQuantity('x')",
         "true"},
        {"duration('1m30s') == duration('90s') && duration('1s') < duration('2s')", "true"},
        {"{'a': 1}.a == 1 && {'a': [1]} == {'a': [1]}", "true"},
        {"self.list == [1, 2, 3] && self.list != [1]", "true"},
        {"[3, 1, 2].max() == 3 && [3, 1].min() == 1 && [1, 2].sum() == 3 && [1, 2].isSorted()",
         "true"},
        {"'a' < 'b' && !('b' <= 'a') && true != false", "true"},
        {"'a' < 1", "error"},
        {"!self.replicas", "error"},
        {"-self.min == -1", "true"},
        {"'\\u00e9' == 'é' && r'\\d' == '\\\\d' && \"it's\" == 'it\\'s'", "true"},
        {"isURL('https://x.y') && !isURL('nope')", "true"},
        {"self.replicas > 2 // a comment", "true"},
        {"oldSelf.replicas == 3", "error"},
        {"self.replicas ==", "refused"},
        {"nonsense(self)", "refused"},
        {"undeclared == 1", "refused"},
        {"self.x.frobnicate()", "refused"},
        {"has(self)", "refused"},
        {"self.?x == 1", "refused"},
        {"'unterminated", "refused"},
        {"self.list.all(1, true)", "refused"},
        {"99999999999999999999 == 1", "refused"},
        {"self.a b", "refused"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = run(cases[i].text, NULL);
        if (strcmp(got, cases[i].want) != 0)
            fail_msg("%s: %s, expected %s", cases[i].text, got, cases[i].want);
    }
}

static void transition_rules_see_the_old_value(void **state)
{
    (void)state;
    assert_string_equal(run("self.replicas > oldSelf.replicas", "{\"replicas\":2}"), "true");
    struct cel *c;
    assert_int_equal(cel_compile("self == oldSelf", NULL, &c, NULL), 0);
    assert_true(cel_uses_old_self(c));
    cel_free(c);
}

static void deep_or_endless_expressions_are_bounded(void **state)
{
    char deep[4096];
    (void)state;
    memset(deep, '(', 2000);
    deep[2000] = 0;
    assert_string_equal(run(deep, NULL), "refused");
    memset(deep, '!', 2000);
    assert_string_equal(run(deep, NULL), "refused");
    assert_string_equal(run("self.list.all(a, self.list.all(b, self.list.all(c, self.list.all(d, "
                            "self.list.all(e, self.list.all(f, "
                            "self.list.all(g, self.list.all(h, self.list.all(i, self.list.all(j, "
                            "self.list.all(k, 1 == 1)))))))))))",
                            NULL),
                        "error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_have_the_values_of_the_specification),
        cmocka_unit_test(transition_rules_see_the_old_value),
        cmocka_unit_test(deep_or_endless_expressions_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
