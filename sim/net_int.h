/* net_int.h: what the client's half (net.c) and the server's half (httpd.c) of the simulated
 * network share. A call is counted by reference: its client, and every message and event that names
 * it. */
#pragma once
#include "sim/sim.h"

#include "lib/base/buf.h"
#include "lib/io/http.h"
#include "lib/io/httpd.h"

struct pair {
    struct pair *next;
    char *name, *value;
};
void net_pair(struct pair **list, const char *name, const char *value);
const char *net_pair_get(const struct pair *list, const char *name);
void net_pairs_free(struct pair *list);

struct http_client {
    struct proc *proc;
    char *user_agent;
    struct http_call *calls;
    struct http_client *next;
};

enum msg_kind { MSG_HEAD, MSG_DATA, MSG_END, MSG_BREAK };
struct msg {
    struct http_call *call;
    struct msg *next; /* in the call's queue */
    uint64_t due;
    enum msg_kind kind;
    int status;
    char *data;
    size_t n;
};

struct http_call {
    struct http_client *client;
    struct http_call *prev, *next;
    struct http_request r; /* strings in it are the caller's and gone: method, url… are copies */
    char *method, *url, *body;
    size_t body_n;
    char **headers;
    size_t n_headers;
    struct httpd_req *x; /* the server's side while both live */
    struct buf in;
    struct pair *answer_headers;
    int status;
    bool watch, listing, watch_cut, damaged, lose_request, cancelled, ended;
    bool severed; /* nothing but its end will arrive */
    unsigned refs;
    struct msg *queue;
    uint64_t last_due; /* of the messages to the client: their order is kept */
    struct {
        char *data; /* a frame that is overtaken */
        size_t n;
        char key[160];
    } held;
};

struct httpd_req {
    struct http_call *call; /* NULL: the client left, or there was none (net_call) */
    struct direct *direct;  /* of net_call */
    char *method, *path, *query, *body;
    size_t body_n;
    struct pair *headers, *args;
    httpd_close_fn on_close;
    void *close_ctx;
    int status;
    bool replied, streaming, closed;
    bool leaving; /* the server is about to hear that the client left: x stays until then */
    bool done;    /* closed, and its memory would have been freed */
};

/* net.c */
void net_head(struct http_call *c, int status);
void net_data(struct http_call *c, struct str s);
void net_frame(struct http_call *c, struct str s); /* of a stream: one line */
void net_end(struct http_call *c, bool broken);
void net_cut_in(struct http_call *c, uint64_t delay_ns);
bool net_answer_lost(struct http_call *c);
void net_client_added(struct http_client *h);

/* httpd.c */
void net_dispatch(struct http_call *c);
void net_gone(struct httpd_req *x); /* the client left */
void net_left(struct httpd_req *x); /* the same, some time after it left */
/* The versions of its kind are lost to this client, until a whole list has reached it. */
bool net_damaged(const struct http_call *c);
void net_listed(const struct http_call *c);
