/* log.h: one JSON object a line on stderr ({"ts","level","prog","msg",fields…}), or text for
 * terminals. The message is a constant; values are fields. Each call site is rate-limited (burst
 * 20, then 5 a second; what was dropped is counted in the next line's "suppressed"). Thread-safe.
 * Levels: error = a person must act, warn = degraded, info = a lifecycle change, debug. */
#pragma once
#include "lib/base/str.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

struct log_field {
    const char *key; /* NULL ends the list */
    enum { LOG_STR, LOG_INT, LOG_FLOAT } kind;
    struct str s;
    int64_t i;
    double f;
};
#define LS(k, v)   ((struct log_field){.key = (k), .kind = LOG_STR, .s = str_c(v)})
#define LSTR(k, v) ((struct log_field){.key = (k), .kind = LOG_STR, .s = (v)})
#define LI(k, v)   ((struct log_field){.key = (k), .kind = LOG_INT, .i = (int64_t)(v)})
#define LF(k, v)   ((struct log_field){.key = (k), .kind = LOG_FLOAT, .f = (double)(v)})
#define LERR(e)    LS("error", (e)->msg)

struct log_site {
    uint64_t window_ns;
    uint32_t count, suppressed;
};

void log_init(const char *prog, const char *format /* "json"|"text" */, enum log_level max);
int log_level_parse(const char *name, enum log_level *out) MUST_CHECK;
void log_write(enum log_level level, struct log_site *site, const char *msg,
               const struct log_field *fields);

#define LOG_AT(level, msg, ...)                                                                    \
    do {                                                                                           \
        static struct log_site log_site_;                                                          \
        log_write(level, &log_site_, msg,                                                          \
                  (struct log_field[]){__VA_ARGS__ __VA_OPT__(, )(struct log_field){0}});          \
    } while (0)
#define log_error(...) LOG_AT(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  LOG_AT(LOG_WARN, __VA_ARGS__)
#define log_info(...)  LOG_AT(LOG_INFO, __VA_ARGS__)
#define log_debug(...) LOG_AT(LOG_DEBUG, __VA_ARGS__)
