/* httpd_int.h: what httpd.c (daemon, loop, connections) and httpd_req.c (one exchange) share. Not
 * for others. */
#pragma once
#include "lib/io/httpd.h"

#include <microhttpd.h>

enum exchange { EX_BODY, EX_PENDING, EX_REPLY, EX_STREAM, EX_DONE };

struct header {
    char *name, *value;
    struct header *next;
};

/* One TCP connection; lives from accept to close. */
struct conn {
    struct httpd *h;
    struct httpd_req *req; /* the exchange that is running, or NULL */
    int fd;
    bool gone; /* the client closed its side */
};

struct httpd_req {
    struct httpd *h;
    struct conn *conn;
    struct MHD_Connection *mc;
    struct httpd_req *prev, *next;
    enum exchange state;
    bool in_handler, suspended, gone, aborted, ended, refused, malformed_path;
    char *method, *uri, *path; /* uri: raw, with the query */
    struct str query;
    struct buf body, queue; /* queue: bytes of a stream that wait for the client */
    size_t queue_at;        /* of them already handed to the daemon */
    struct header *headers, *args;
    struct MHD_Response *response;
    int status;
    char peer[64];
    void *user, *close_ctx;
    httpd_close_fn on_close;
};

struct httpd {
    struct httpd_config c;
    struct MHD_Daemon *d;
    uv_poll_t poll, hup_poll;
    uv_timer_t timer;
    uv_prepare_t prepare;
    uv_idle_t idle;
    int hup_fd;
    bool dirty, running, stopping;
    int open_handles;
    unsigned active;
    uint16_t port;
    struct httpd_req *reqs;
};

void httpd_kick(struct httpd *h); /* run the daemon before the loop sleeps */
void httpd_req_resume(struct httpd_req *r);
void httpd_req_gone(struct httpd_req *r); /* the client left */
struct httpd_req *httpd_req_new(struct httpd *h, const char *uri);
void httpd_req_free(struct httpd_req *r);
/* Queues what the handler decided; MHD_NO closes the connection. */
enum MHD_Result httpd_req_answer(struct httpd_req *r);
/* Answers `status` in the program's own form; the body is not read. */
void httpd_req_refuse(struct httpd_req *r, int status, const char *message);
