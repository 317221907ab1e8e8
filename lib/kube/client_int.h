/* client_int.h: what client.c (calls and answers), client_send.c (when a request goes out) and
 * client_auth.c (with which credentials) share. Private to lib/kube. */
#pragma once
#include "lib/kube/client.h"

#define BODY_MAX       (64u << 20)
#define RETRY_AFTER_MS 30000 /* a longer Retry-After is not waited for */
#define RESEND_MAX     3     /* of one request, because the server said when */

struct waiting_call;
struct text_seen;
struct old_pem;

struct bucket {
    double qps, burst, tokens; /* qps <= 0: no limit */
    uint64_t at_ns;
};

struct kube_client {
    uv_loop_t *loop;
    struct http_client *http;
    struct kube_config config;
    char *user_agent, *token;
    uint64_t read_ns;        /* of the files with credentials */
    struct old_pem *old_pem; /* requests under way may still use them */
    struct waiting_call *sent, *waiting;
    unsigned n_waiting;
    struct bucket bucket;
    uint64_t hold_until_ns;       /* the server asked for a pause */
    uint64_t timeout_ns;          /* when an answer last failed to come in time; 0: never */
    struct kube_watch *unhurried; /* watch.c */
    uv_timer_t *pump;
    struct text_seen *warnings;
};

/* client.c: an answer's status and body; fills everything but retry_after_ms from a header. */
void kube_read_answer(int status, struct str body, bool text_only, struct kube_result *out);
struct http_client_config kube_http_config(const struct kube_client *c);
/* Retry-After in ms, from the header or the Status (either may be NULL); 0: none. */
unsigned kube_retry_after(const struct http_call *call, const json_t *status);

/* It was not carried out, and the server says when to try again. */
bool kube_asks_to_wait(const struct kube_result *r);

/* client_send.c */
void kube_send_fini(struct kube_client *c);
/* Takes path and body over. */
int kube_send(struct kube_client *c, const struct kube_call *call, const char *method, char *path,
              const char *content_type, char *body, size_t body_n, struct err *e) MUST_CHECK;
/* Logs each text of the Warning headers once. */
void kube_warnings(struct kube_client *c, const struct http_call *call);
size_t kube_warnings_seen(const struct kube_client *c);
/* An answer did not come in time: connections that idled since before may be dead, too. */
void kube_distrust(struct kube_client *c);
/* watch.c: what such an answer means for watches that would find it out late. */
void kube_watches_doubt(struct kube_client *c);
/* The ns until the bucket has n tokens; 0: it has. */
uint64_t bucket_wait(struct bucket *b, double n, uint64_t now_ns);
/* Tokens: 0 and one is taken, else the ns until there is one. */
uint64_t bucket_take(struct bucket *b, uint64_t now_ns);

/* client_auth.c */
struct kube_headers {
    char *auth, *type;
    const char *list[4];
};
void kube_headers_init(struct kube_headers *h, struct kube_client *c, const char *content_type);
void kube_headers_fini(struct kube_headers *h);
/* Reads token, CA and client certificate again, because the server (401) or TLS refused: did one
 * change? */
bool kube_credentials_changed(struct kube_client *c);
void kube_auth_fini(struct kube_client *c);
