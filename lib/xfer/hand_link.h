/* hand_link.h: what both state machines keep of a session, and the words they share. Private to
 * hand_d.c and hand_p.c. */
#pragma once
#include "lib/base/clock.h"
#include "lib/base/rng.h"
#include "lib/xfer/hand.h"

#include <stdio.h>
#include <stdlib.h>
#include <utlist.h>

struct hand_link {
    uint64_t peer, session;
    uint64_t heard_ns, beat_ns; /* last word from the peer; next heartbeat */
    void *user;
    uint32_t peer_blocks; /* P: size of D's pool */
    enum xfer_path path;  /* P */
    bool lost;            /* over; kept until its writers are known stopped */
    struct hand_link *prev, *next;
};

/* A list of (id, p_id) pairs for a heartbeat. */
#define HAND_BEAT_MAX 4096u

static inline uint64_t hand_beat_ns(const struct hand_cfg *c)
{
    return c->lease_ns / 5;
}

static inline void hand_text(char out[XFER_REASON_MAX], const char *text)
{
    snprintf(out, XFER_REASON_MAX, "%s", text ? text : "");
}

static inline void hand_text_of(char out[XFER_REASON_MAX], const struct control_msg *m)
{
    size_t n = m->payload_bytes < XFER_REASON_MAX - 1 ? m->payload_bytes : XFER_REASON_MAX - 1;
    if (n)
        memcpy(out, m->payload, n);
    out[n] = '\0';
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)out[i] < 0x20)
            out[i] = ' ';
}

static inline enum xfer_reason hand_reason_of(const struct control_msg *m, enum xfer_reason other)
{
    return m->reason > XFER_OK && m->reason < XFER_REASONS ? (enum xfer_reason)m->reason : other;
}

static inline struct control_msg hand_msg(const struct hand_cfg *c, const struct hand_link *l,
                                          enum control_type type, uint64_t id, uint64_t p_id)
{
    return (struct control_msg){
        .type = type, .from = c->me, .to = l->peer, .session = l->session, .id = id, .p_id = p_id};
}

static inline void hand_send_text(const struct hand_cfg *c, struct hand_link *l,
                                  enum control_type type, uint64_t id, uint64_t p_id,
                                  enum xfer_reason why, const char *text)
{
    struct control_msg m = hand_msg(c, l, type, id, p_id);
    m.reason = (uint32_t)why;
    m.payload = text;
    m.payload_bytes = (uint32_t)strlen(text);
    c->ops->send(c->ctx, l, &m);
}

/* Is this message for me, from the peer of this link and of this session? */
static inline bool hand_addressed(const struct hand_cfg *c, const struct hand_link *l,
                                  const struct control_msg *m)
{
    return m->to == c->me && m->from == l->peer && m->session == l->session;
}

static inline struct hand_link *hand_link_make(uint64_t peer, uint64_t session, void *user,
                                               uint64_t now_ns)
{
    struct hand_link *l = xcalloc(1, sizeof *l);
    l->peer = peer;
    l->session = session;
    l->user = user;
    l->heard_ns = l->beat_ns = now_ns;
    return l;
}

static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
