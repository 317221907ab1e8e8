/* client.h: the verbs of the Kubernetes API over one persistent HTTP client. One client belongs to
 * one loop and its thread; callbacks happen there. kube_run is the blocking form for tools. Errors
 * of the API (kind Status) are decoded into reason and a sentence. Redirects are not followed. HTTP
 * 409 is reported like any other status: what it means is the caller's business.
 *
 * Credentials in files (token, CA, client certificate) are read again once a minute and at once
 * after a 401 or a failure of TLS; when they changed, the request is sent again. A 429 or 503 with
 * a Retry-After of at most 30 s holds all requests of the client back for so long, and the request
 * is sent again, three times at most; others wait in order. Requests beyond the configured rate
 * wait, too. Neither holds for urgent ones (Leases). Texts of Warning headers are logged once each.
 * Answers are not compressed: lists come as streams, which the API server never compresses, and
 * inflating one costs more CPU than the decryption that it saves (10,000 pods, 18 MB: 42 ms and 6
 * ms). Source: https://kubernetes.io/docs/reference/using-api/api-concepts/ */
#pragma once
#include "lib/io/http.h"
#include "lib/kube/types.h"

struct kube_config {
    char *server; /* "https://127.0.0.1:6443", no slash at the end */
    char *ca_pem, *cert_pem, *key_pem;
    char *token, *token_file;
    char *ca_file, *cert_file, *key_file; /* where the PEM texts came from; NULL: not from a file */
    int qps, burst;  /* requests a second; 0: 100 and 200, negative: no limit */
    char *namespace; /* of the context or of the service account; "default" else */
    bool insecure_skip_verify;
};
/* path NULL: $BATON_KUBECONFIG, else the in-cluster service account. Relative paths in a kubeconfig
 * are relative to it. qps and burst: $BATON_KUBE_QPS and $BATON_KUBE_BURST. */
int kube_config_load(const char *path, struct kube_config *out, struct err *e) MUST_CHECK;
void kube_config_fini(struct kube_config *c);

struct kube_client;
/* loop NULL: only kube_run may be used. The configuration is copied. */
int kube_client_new(uv_loop_t *loop, const struct kube_config *c, const char *user_agent,
                    struct kube_client **out, struct err *e) MUST_CHECK;
void kube_client_free(struct kube_client *c); /* cancels what runs, no callbacks */
const char *kube_namespace(const struct kube_client *c);
uv_loop_t *kube_loop(const struct kube_client *c);

enum kube_verb {
    KUBE_GET,
    KUBE_LIST,
    KUBE_CREATE,
    KUBE_UPDATE,
    KUBE_APPLY,
    KUBE_PATCH,
    KUBE_DELETE
};

struct kube_result {
    int status;      /* HTTP status; 0: no answer (err says why) */
    char reason[64]; /* "NotFound", "AlreadyExists", "Conflict", "Invalid", "Expired"…; "" on
                        success */
    json_t *object; /* the answer; borrowed in callbacks, owned by the result after kube_run; may be
                       NULL */
    struct str text; /* the answer as it came; a success of a call with text_only has no object.
                        Borrowed, in callbacks only */
    unsigned retry_after_ms; /* of a 429 or 503; 0 when not given */
    struct err err;          /* code 0 on success (2xx) */
};
typedef void (*kube_done_fn)(const struct kube_result *r, void *ctx);

struct kube_call {
    enum kube_verb verb;
    const struct kube_kind *kind;
    const char *namespace; /* NULL with a namespaced kind: all of them (list only) */
    const char *name;
    const char *subresource; /* "status", "scale" */
    const json_t *
        body; /* apiVersion and kind are filled in when absent (not for scale, which has its own) */
    const char *field_manager;                   /* apply, create, update, patch */
    bool force;                                  /* apply: take over fields of other managers */
    const char *patch_type;                      /* NULL: application/merge-patch+json */
    const char *label_selector, *field_selector; /* list */
    const char *uid, *resource_version;          /* preconditions of a delete */
    int64_t grace_seconds; /* of a delete; 0: the object's own (use force_now for 0) */
    bool force_now;
    bool dry_run;        /* create, update, apply, patch: checked and answered, not carried out */
    unsigned timeout_ms; /* of one sending; 0: 15,000 */
    bool urgent;         /* never waits, is not sent again */
    bool (*may_send)(const void *ctx); /* optional: asked when a request that waited is about to be
                                          sent; false: done with ECANCELED */
    bool text_only;    /* the answer is wanted as text (lib/json/view_scan.h reads it) */
    kube_done_fn done; /* exactly once, unless the client is freed */
    void *ctx;
};
/* Everything is copied. A negative errno (with *e) only for a malformed call; the answer comes by
 * done. */
int kube_start(struct kube_client *c, const struct kube_call *call, struct err *e) MUST_CHECK;
/* Blocks. Returns 0 on 2xx, else a negative errno: -ENOENT 404, -EEXIST or -EAGAIN 409
 * (AlreadyExists, Conflict), -EINVAL 400/422, -EACCES 401/403, -EBUSY 429, -EIO else. The result
 * must be released in either case. */
int kube_run(struct kube_client *c, const struct kube_call *call,
             struct kube_result *out) MUST_CHECK;
void kube_result_fini(struct kube_result *r);

/* A resource's path with its query, on the heap ("/api/v1/namespaces/x/pods?labelSelector=…"). */
char *kube_path(const struct kube_call *call);
/* The error code of a status and reason, as kube_run returns it (positive). */
int kube_errno(int status, const char *reason);

/* The time until so many requests more could go out without a wait for the client's own rate or for
 * the server's pause; 0: now. Work that begins then is decided from newer facts than work whose
 * requests wait. A rate that never saves up so many is asked for half its burst. */
uint64_t kube_pause_ms(struct kube_client *c, unsigned requests);

/* Internal to lib/kube: a raw request with the client's authentication. */
struct http_call *kube_http_start(struct kube_client *c, const char *method, const char *path,
                                  const char *content_type, struct str body,
                                  const struct http_request *tmpl, struct err *e);
