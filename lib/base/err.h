/* err.h: one error object, passed last, filled only on failure.
 *
 * Contract (every module): a function returns 0 (or a count) on success and a negative errno on
 * failure. What parses or talks to the outside also takes `struct err *e` last; the first function
 * that decides something is an error fills it, callers only add context with err_wrap(). `e` may be
 * NULL. Output arguments are written only on success.
 */
#pragma once
#include <stddef.h>

struct err {
    int code;      /* positive errno of the failure, 0 if none */
    char msg[512]; /* one sentence for a person: what is wrong and what to do */
};

#define MUST_CHECK        __attribute__((warn_unused_result))
#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))

/* Fills *e and returns -code, so that `return err_set(e, EINVAL, "...")` is the whole error path.
 */
int err_set(struct err *e, int code, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Puts "prefix: " before the message that e holds. Returns -e->code (or -EIO when e is empty). */
int err_wrap(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* Programming errors stop the process in every build; never use for input. */
#define ASSERT(x) ((x) ? (void)0 : err_assert_failed(#x, __FILE__, __LINE__))
__attribute__((noreturn)) void err_assert_failed(const char *expr, const char *file, int line);

/* Allocation that can't sensibly fail (start-up, small fixed sizes): aborts with a message when it
 * does. Sizes that come from outside are bounded first. */
void *xmalloc(size_t n);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) PRINTF_LIKE(1, 2);

/* Scope-bound locals: CLEANUP(free_charp) char *s = ...; */
#define CLEANUP(fn) __attribute__((cleanup(fn)))
void free_charp(char **p);
void close_fdp(int *fd); /* closes when >= 0, sets -1 */
