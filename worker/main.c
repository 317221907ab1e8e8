/* baton-worker: one rank of a model. See worker/options.c for what it takes. */
#include "lib/base/log.h"
#include "worker/modes.h"
#include "worker/serve.h"

#include <stdio.h>

int main(int argc, char **argv)
{
    struct options o = {0};
    struct err e = {0};
    enum log_level level = LOG_INFO;
    int rc = options_parse(argc, argv, &o, &e);
    if (rc > 0)
        return 0;
    if (rc == 0 && log_level_parse(o.log_level, &level))
        rc = err_set(&e, 22, "--log-level must be error, warn, info or debug");
    log_init("baton-worker", o.log_format ? o.log_format : "json", level);
    if (rc == 0)
        rc = o.plan    ? mode_plan(&o, &e)
             : o.fill  ? mode_fill(&o, &e)
             : o.score ? mode_score(&o, &e)
                       : serve(&o, &e);
    if (rc == 0)
        return 0;
    fprintf(stderr, "baton-worker: %s\n", e.msg);
    return 1;
}
