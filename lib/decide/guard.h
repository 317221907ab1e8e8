/* guard.h: names for the conditions that keep a known failure away (tests/cases.tsv names the
 * failure, the guard and the test that catches it). In a normal build GUARD(name) is the constant
 * true. In a break build
 * (`make BREAK=1 ...`, objects in build/break) it is false for the one name in $BATON_BREAK, so
 * that the case table can prove that each test fails without its guard. Use: `if
 * (GUARD(stale_sample) && is_stale(s)) continue;` */
#pragma once
#include <stdbool.h>

#ifdef BATON_BREAK
bool guard_on(const char *name); /* false for the name in $BATON_BREAK */
#define GUARD(name) guard_on(#name)
#else
#define GUARD(name) true
#endif
