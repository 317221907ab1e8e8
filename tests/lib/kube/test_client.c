/* Requests on the wire, Status errors, kubeconfig files. */
#include "tests/lib/kube/apiserver.h"

#include "lib/kube/event.h"

#include <errno.h>
#include <unistd.h>

struct result {
    struct apiserver *s;
    int status, code;
    char reason[64], msg[512];
    unsigned retry_after_ms, n;
    json_t *object;
    char text[256];
};

static void on_done(const struct kube_result *r, void *ctx)
{
    struct result *out = ctx;
    out->status = r->status;
    out->code = r->err.code;
    out->retry_after_ms = r->retry_after_ms;
    snprintf(out->reason, sizeof out->reason, "%s", r->reason);
    snprintf(out->msg, sizeof out->msg, "%s", r->err.msg);
    out->object = json_incref(r->object);
    snprintf(out->text, sizeof out->text, STR_FMT, STR_ARG(r->text));
    out->n++;
    uv_stop(&out->s->loop);
}

static void call(struct apiserver *s, struct kube_call *c, struct result *out)
{
    struct err e = {0};
    *out = (struct result){.s = s};
    c->done = on_done;
    c->ctx = out;
    if (kube_start(s->client, c, &e))
        fail_msg("%s", e.msg);
    apiserver_run(s);
    assert_int_equal(out->n, 1);
}

static const struct {
    const char *method, *path, *query, *type, *body;
} verbs_on_the_wire[] = {
    {"GET", "/api/v1/namespaces/d/pods/a b", "", "", ""},
    {"GET", "/apis/serving.baton.dev/v1alpha1/workerpools", "labelSelector=x%3Dy%2Cz", "", ""},
    {"POST", "/apis/serving.baton.dev/v1alpha1/namespaces/d/workerpools", "fieldManager=me",
     "application/json", "\"kind\":\"WorkerPool\""},
    {"PUT", "/apis/serving.baton.dev/v1alpha1/namespaces/d/workerpools/a/scale", "",
     "application/json", "{\"metadata\":{\"name\":\"a\"}}"},
    {"PATCH", "/apis/serving.baton.dev/v1alpha1/namespaces/d/inferencedeployments/a/status",
     "fieldManager=me&force=true", "application/apply-patch+yaml",
     "\"apiVersion\":\"serving.baton.dev/v1alpha1\""},
    {"PATCH", "/apis/serving.baton.dev/v1alpha1/nodeinventories/n", "",
     "application/merge-patch+json", "{\"metadata\":{\"name\":\"a\"}}"},
    {"PATCH", "/api/v1/namespaces/d/pods/a", "", "application/json-patch+json", ""},
    {"DELETE", "/api/v1/namespaces/d/pods/a", "", "application/json",
     "\"preconditions\":{\"uid\":\"u\",\"resourceVersion\":\"7\"}"},
};

static void each_verb_has_its_method_path_and_type(void **state)
{
    struct apiserver s;
    struct answer ok = {.body = "{\"kind\":\"x\"}"};
    struct answer script[] = {ok, ok, ok, ok, ok, ok, ok, ok};
    struct result r;
    (void)state;
    apiserver_start(&s, script, 8);
    json_t *body = json_pack("{s:{s:s}}", "metadata", "name", "a");
    struct kube_call calls[] = {
        {.verb = KUBE_GET, .kind = &kube_pods, .namespace = "d", .name = "a b"},
        {.verb = KUBE_LIST, .kind = &kube_wps, .label_selector = "x=y,z"},
        {.verb = KUBE_CREATE,
         .kind = &kube_wps,
         .namespace = "d",
         .name = "a",
         .body = body,
         .field_manager = "me"},
        {.verb = KUBE_UPDATE,
         .kind = &kube_wps,
         .namespace = "d",
         .name = "a",
         .subresource = "scale",
         .body = body},
        {.verb = KUBE_APPLY,
         .kind = &kube_infds,
         .namespace = "d",
         .name = "a",
         .subresource = "status",
         .body = body,
         .field_manager = "me",
         .force = true},
        {.verb = KUBE_PATCH, .kind = &kube_ninvs, .name = "n", .body = body},
        {.verb = KUBE_PATCH,
         .kind = &kube_pods,
         .namespace = "d",
         .name = "a",
         .body = body,
         .patch_type = "application/json-patch+json"},
        {.verb = KUBE_DELETE,
         .kind = &kube_pods,
         .namespace = "d",
         .name = "a",
         .uid = "u",
         .resource_version = "7",
         .grace_seconds = 5},
    };
    for (size_t i = 0; i < 8; i++) {
        call(&s, &calls[i], &r);
        const struct seen_request *q = &s.seen[i];
        assert_string_equal(q->method, verbs_on_the_wire[i].method);
        assert_string_equal(q->path, verbs_on_the_wire[i].path);
        assert_string_equal(q->query, verbs_on_the_wire[i].query);
        assert_string_equal(q->type, verbs_on_the_wire[i].type);
        assert_string_equal(q->auth, "Bearer secret-token");
        if (!strstr(q->body, verbs_on_the_wire[i].body))
            fail_msg("%s lacks %s", q->body, verbs_on_the_wire[i].body);
        assert_int_equal(r.code, 0);
        assert_string_equal(json_str_at(r.object, "kind", ""), "x");
        json_decref(r.object);
    }
    assert_non_null(strstr(s.seen[7].body, "\"gracePeriodSeconds\":5"));
    json_decref(body);
    apiserver_stop(&s);
}

static void status_objects_become_a_reason_and_a_sentence(void **state)
{
    static const struct {
        int status;
        const char *body, *reason, *message;
        int code;
    } cases[] = {
        {404,
         "{\"kind\":\"Status\",\"reason\":\"NotFound\",\"message\":\"pods \\\"a\\\" not found\"}",
         "NotFound", "pods \"a\" not found", ENOENT},
        {409, "{\"kind\":\"Status\",\"reason\":\"AlreadyExists\",\"message\":\"exists\"}",
         "AlreadyExists", "exists", EEXIST},
        {409, "{\"kind\":\"Status\",\"reason\":\"Conflict\",\"message\":\"changed\"}", "Conflict",
         "changed", EAGAIN},
        {422, "{\"kind\":\"Status\",\"reason\":\"Invalid\",\"message\":\"spec: bad\"}", "Invalid",
         "spec: bad", EINVAL},
        {403, "{\"reason\":\"Forbidden\",\"message\":\"no\"}", "Forbidden", "no", EACCES},
        {410, "{}", "Expired", "HTTP 410", ESTALE},
        {500, "not json", "InternalError", "HTTP 500", EIO},
    };
    struct answer script[7];
    struct apiserver s;
    struct result r;
    (void)state;
    for (size_t i = 0; i < 7; i++)
        script[i] = (struct answer){.status = cases[i].status, .body = cases[i].body};
    apiserver_start(&s, script, 7);
    for (size_t i = 0; i < 7; i++) {
        struct kube_call c = {.verb = KUBE_GET, .kind = &kube_pods, .namespace = "d", .name = "a"};
        call(&s, &c, &r);
        assert_int_equal(r.status, cases[i].status);
        assert_string_equal(r.reason, cases[i].reason);
        assert_non_null(strstr(r.msg, cases[i].message));
        assert_int_equal(r.code, cases[i].code);
        json_decref(r.object);
    }
    apiserver_stop(&s);
}

static void retry_after_is_read_from_the_header_and_the_body(void **state)
{
    struct answer script[] = {
        {.status = 429,
         .body = "{\"reason\":\"TooManyRequests\"}",
         .header = "Retry-After",
         .value = "3"},
        {.status = 429,
         .body = "{\"reason\":\"TooManyRequests\",\"details\":{\"retryAfterSeconds\":2}}"},
    };
    struct apiserver s;
    struct result r;
    (void)state;
    apiserver_start(&s, script, 2);
    for (unsigned i = 0; i < 2; i++) {
        struct kube_call c = {.verb = KUBE_GET,
                              .kind = &kube_pods,
                              .namespace = "d",
                              .name = "a",
                              .urgent = true}; /* is told at once */
        call(&s, &c, &r);
        assert_int_equal(r.retry_after_ms, i ? 2000 : 3000);
        assert_int_equal(r.code, EBUSY);
        json_decref(r.object);
    }
    apiserver_stop(&s);
}

static void an_answer_may_be_wanted_as_text(void **state)
{
    struct apiserver s;
    struct answer script[] = {{.body = "{\"kind\": \"Pod\"}"},
                              {.status = 409, .body = "{\"reason\":\"AlreadyExists\"}"}};
    struct kube_call c = {
        .verb = KUBE_GET, .kind = &kube_pods, .namespace = "d", .name = "a", .text_only = true};
    struct result r;
    (void)state;
    apiserver_start(&s, script, 2);
    call(&s, &c, &r);
    assert_null(r.object);
    assert_string_equal(r.text, "{\"kind\": \"Pod\"}");
    call(&s, &c, &r);
    assert_int_equal(r.code, EEXIST);
    assert_string_equal(json_str_at(r.object, "reason", ""), "AlreadyExists");
    json_decref(r.object);
    apiserver_stop(&s);
}

static void a_redirect_is_not_followed(void **state)
{
    struct answer script[] = {
        {.status = 307, .body = "{}", .header = "Location", .value = "/elsewhere"}};
    struct apiserver s;
    struct result r;
    (void)state;
    apiserver_start(&s, script, 1);
    struct kube_call c = {.verb = KUBE_GET, .kind = &kube_pods, .namespace = "d", .name = "a"};
    call(&s, &c, &r);
    assert_int_equal(r.status, 307);
    assert_int_equal(r.code, EIO);
    assert_int_equal(s.n, 1);
    json_decref(r.object);
    apiserver_stop(&s);
}

static void a_server_that_is_not_there_is_an_error_with_its_address(void **state)
{
    struct apiserver s;
    struct result r;
    struct err e = {0};
    (void)state;
    apiserver_start(&s, NULL, 0);
    struct kube_config kc = {.server = (char *)(uintptr_t) "http://127.0.0.1:1"};
    struct kube_client *c;
    assert_int_equal(kube_client_new(&s.loop, &kc, "test", &c, &e), 0);
    struct kube_client *own = s.client;
    s.client = c;
    struct kube_call k = {.verb = KUBE_GET, .kind = &kube_pods, .namespace = "d", .name = "a"};
    call(&s, &k, &r);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.msg, "127.0.0.1:1"));
    kube_client_free(own);
    apiserver_stop(&s);
}

static void a_client_freed_with_calls_under_way_makes_no_callback(void **state)
{
    struct apiserver s;
    struct answer script[] = {{.body = "", .hold = true}};
    struct result r = {.s = &s};
    (void)state;
    apiserver_start(&s, script, 1);
    struct kube_call c = {.verb = KUBE_GET,
                          .kind = &kube_pods,
                          .namespace = "d",
                          .name = "a",
                          .done = on_done,
                          .ctx = &r};
    assert_int_equal(kube_start(s.client, &c, NULL), 0);
    apiserver_wait(&s, 50);
    apiserver_stop(&s);
    assert_int_equal(r.n, 0);
}

static void repeated_events_become_one_series(void **state)
{
    struct apiserver s;
    struct answer ok = {.body = "{}"};
    struct answer script[] = {ok, ok, ok};
    struct kube_events_recorder *r;
    struct kube_regarding about = {&kube_infds, "d", "chat", "u1", NULL};
    struct err e = {0};
    (void)state;
    apiserver_start(&s, script, 3);
    assert_int_equal(kube_events_new(s.client, "baton-test", "one", &r, &e), 0);
    kube_event(r, &about, "Normal", "Scaled", "Scale", "from 1 to 2");
    apiserver_wait(&s, 50);
    kube_event(r, &about, "Normal", "Scaled", "Scale", "from 1 to 2");
    apiserver_wait(&s, 50);
    kube_event(r, &about, "Normal", "Scaled", "Scale", "from 2 to 3");
    apiserver_wait(&s, 50);
    assert_int_equal(s.n, 3);
    assert_string_equal(s.seen[0].method, "POST");
    assert_string_equal(s.seen[0].path, "/apis/events.k8s.io/v1/namespaces/d/events");
    assert_non_null(strstr(s.seen[0].body, "\"reportingController\":\"baton-test\""));
    assert_string_equal(s.seen[1].method, "PATCH");
    assert_non_null(strstr(s.seen[1].body, "\"count\":2"));
    assert_string_equal(s.seen[2].method, "POST");
    for (int i = 0; i < 100; i++) { /* the object's budget ends */
        char note[32];
        snprintf(note, sizeof note, "note %d", i);
        kube_event(r, &about, "Normal", "Scaled", "Scale", note);
    }
    apiserver_wait(&s, 200);
    kube_events_free(r);
    apiserver_stop(&s);
}

static char *write_file(const char *dir, const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    return path;
}

static void kubeconfigs_are_read_with_their_files(void **state)
{
    char dir[] = "/tmp/baton-test-XXXXXX";
    struct kube_config c;
    struct err e = {0};
    (void)state;
    assert_non_null(mkdtemp(dir));
    char *ca = write_file(dir, "ca.crt", "PEM");
    char *path =
        write_file(dir, "config",
                   "apiVersion: v1\nkind: Config\ncurrent-context: b\n"
                   "clusters:\n- name: k\n  cluster: {server: \"https://h:1/\", "
                   "certificate-authority: ca.crt}\n"
                   "users:\n- name: u\n  user: {token: t, client-certificate-data: aGVsbG8=}\n"
                   "contexts:\n- name: a\n  context: {cluster: none, user: u}\n"
                   "- name: b\n  context: {cluster: k, user: u, namespace: ns}\n");
    if (kube_config_load(path, &c, &e))
        fail_msg("%s", e.msg);
    assert_string_equal(c.server, "https://h:1");
    assert_string_equal(c.ca_pem, "PEM");
    assert_string_equal(c.cert_pem, "hello");
    assert_string_equal(c.token, "t");
    assert_string_equal(c.namespace, "ns");
    assert_non_null(strstr(c.ca_file, "/ca.crt")); /* read again when it changes */
    assert_null(c.cert_file);
    assert_int_equal(c.qps, 0);
    kube_config_fini(&c);
    setenv("BATON_KUBE_QPS", "-1", 1);
    setenv("BATON_KUBE_BURST", "7", 1);
    assert_int_equal(kube_config_load(path, &c, &e), 0);
    assert_int_equal(c.qps, -1);
    assert_int_equal(c.burst, 7);
    kube_config_fini(&c);
    setenv("BATON_KUBE_QPS", "many", 1);
    assert_true(kube_config_load(path, &c, &e) < 0);
    assert_non_null(strstr(e.msg, "BATON_KUBE_QPS"));
    unsetenv("BATON_KUBE_QPS");
    unsetenv("BATON_KUBE_BURST");
    char *bad = write_file(dir, "bad", "current-context: x\ncontexts: []\n");
    assert_true(kube_config_load(bad, &c, &e) < 0);
    assert_non_null(strstr(e.msg, "current-context"));
    assert_true(kube_config_load("/nonexistent", &c, &e) < 0);
    unsetenv("BATON_KUBECONFIG");
    unsetenv("KUBERNETES_SERVICE_HOST");
    assert_true(kube_config_load(NULL, &c, &e) < 0);
    assert_non_null(strstr(e.msg, "BATON_KUBECONFIG"));
    unlink(ca), unlink(path), unlink(bad), rmdir(dir);
    free(ca), free(path), free(bad);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_verb_has_its_method_path_and_type),
        cmocka_unit_test(status_objects_become_a_reason_and_a_sentence),
        cmocka_unit_test(retry_after_is_read_from_the_header_and_the_body),
        cmocka_unit_test(an_answer_may_be_wanted_as_text),
        cmocka_unit_test(a_redirect_is_not_followed),
        cmocka_unit_test(a_server_that_is_not_there_is_an_error_with_its_address),
        cmocka_unit_test(a_client_freed_with_calls_under_way_makes_no_callback),
        cmocka_unit_test(repeated_events_become_one_series),
        cmocka_unit_test(kubeconfigs_are_read_with_their_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
