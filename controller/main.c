/* baton-controller: makes, scales, rolls, drains and heals the worker pods of InferenceDeployments.
 */
#include "controller/restart.h"
#include "controller/uninstall.h"
#include "lib/base/conf.h"
#include "lib/base/log.h"

#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static void on_signal(uv_signal_t *s, int number)
{
    log_info("stopping", LI("signal", number));
    ctl_end(s->data);
}

static int start(struct ctl *c, struct err *e)
{
    struct kube_config config = {0};
    int rc = kube_config_load(NULL, &config, e);
    if (!rc)
        rc = ctl_start(c, &config, e);
    if (!rc)
        rc = rights_start(c, e);
    if (!rc)
        rc = restart_start(c, e);
    if (!rc)
        expose_start(c);
    kube_config_fini(&config);
    return rc;
}

int main(int argc, char **argv)
{
    struct ctl c = {0};
    struct err e = {0};
    enum log_level level;
    if (argc > 1 && strcmp(argv[1], "uninstall") == 0)
        return uninstall_main(argc - 1, argv + 1);
    int first, rc = conf_parse(&ctl_program, argc, argv, &c.opts, &first, &e);
    if (rc > 0)
        return 0;
    if (rc < 0 || log_level_parse(c.opts.log_level, &level)) {
        fprintf(stderr, "baton-controller: %s\n",
                rc < 0 ? e.msg : "--log-level must be error, warn, info or debug");
        return 2;
    }
    /* Large buffers are mapped and go when they are freed; by default that threshold grows with
     * use. */
    mallopt(M_MMAP_THRESHOLD, 256 * 1024);
    mallopt(M_TRIM_THRESHOLD, 1024 * 1024);
    log_init("baton-controller", c.opts.log_format, level);
    signal(SIGPIPE, SIG_IGN);
    uv_loop_t loop;
    uv_signal_t term, interrupt;
    if (uv_loop_init(&loop) || uv_signal_init(&loop, &term) || uv_signal_init(&loop, &interrupt))
        return 1;
    c.loop = &loop;
    term.data = interrupt.data = &c;
    uv_signal_start(&term, on_signal, SIGTERM);
    uv_signal_start(&interrupt, on_signal, SIGINT);
    rc = start(&c, &e);
    if (rc) {
        log_error("can't start", LERR(&e));
        return 1;
    }
    log_info("started", LS("namespace", c.namespace ? c.namespace : "*"),
             LI("port", httpd_port(c.http)), LS("version", baton_version));
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_close((uv_handle_t *)&term, NULL);
    uv_close((uv_handle_t *)&interrupt, NULL);
    expose_stop(&c);
    restart_stop(&c);
    ctl_finish(&c);
    (void)uv_loop_close(&loop); /* busy only when a handle could not be closed in time */
    return c.exit_code;
}
