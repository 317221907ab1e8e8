/* engine_int.h: the engine's own state, shared by engine.c (thread and queues), step.c (one step),
 * emit.c (records and ends) and handover.c (both sides of a transfer). Everything belongs to the
 * engine's thread but what `lock` guards. */
#pragma once
#include "lib/base/metrics.h"
#include "lib/decide/schedule.h"
#include "lib/wire/record.h"
#include "worker/draft.h"
#include "worker/engine.h"
#include "worker/sample.h"
#include "worker/seq.h"

#include <pthread.h>

enum mail_kind {
    MAIL_SUBMIT,
    MAIL_CANCEL,
    MAIL_CANCEL_ID,
    MAIL_ROLE,
    MAIL_SLEEP,
    MAIL_DRAIN,
    MAIL_STOP
};

struct mail {
    struct mail *next;
    enum mail_kind kind;
    uint64_t a, b; /* handle, id, role or deadline */
    void *body;
    size_t n;
};

/* A transfer to here: from the order until its blocks are ours (done) or free (quiesced). */
struct inbound {
    struct inbound *prev, *next;
    uint64_t id;
    struct request *req;          /* NULL: nobody wants it any more */
    uint32_t *have, n_have;       /* cached blocks held for it, left out of the push */
    uint32_t *granted, n_granted; /* held once each; quarantined after a failure */
    uint32_t asked;               /* blocks wanted, not granted yet */
    uint64_t asked_ns;
    bool asking, failed;
};

/* Pieces of one order that this step completes, pushed layer by layer. */
struct push {
    uint64_t id;
    struct xfer_piece *pieces;
    uint32_t n, cap;
};

/* Arrays of a step, grown to the number of sequences. */
struct step_scratch {
    struct schedule_seq *running, *waiting;
    struct seq **ready; /* of waiting */
    struct schedule_pick *picks, *expired;
    uint32_t *preempted;
    struct seq **seqs; /* of the picks */
    struct model_segment *segments;
    struct push *pushes;
    uint32_t *hit;
    uint32_t cap, cap_hit, n_pushes;
    uint32_t prompt_rows;     /* of a step: all but decodes and their drafts */
    struct model_draw *draws; /* [logit_rows] */
    bool drawn;               /* the step's tokens are there, not in the logits */
};

/* Decodes on their way through a pipeline (flight.c). */
struct flight {
    struct seq **seqs;
    struct model_segment *segments;
    uint32_t n, cap, rows;
    struct model_batch batch;
    uint64_t begun_ns;
};

struct engine_metrics {
    struct metric *waiting, *running, *blocks_used, *blocks_cached, *blocks_free,
        *blocks_quarantined;
    struct metric *prompt_tokens, *cached_tokens, *generated_tokens, *preemptions, *fallbacks;
    struct metric *kv_in, *kv_out, *ttft, *queue, *step, *step_rows;
    struct metric_family *ended; /* by reason */
    struct metric *bubble, *collectives, *collective_s, *drafted, *accepted, *device_tokens;
    uint64_t seen_collectives, seen_wait_ns;
    struct metric_family *stage_busy; /* by stage */
    struct metric *pipeline_s;
    uint64_t seen_step_ns, seen_stage_ns[MODEL_STAGES_MAX];
    double part_step_s, part_busy_s; /* of the second that the bubble is measured over */
    struct metric *rank_seqs[2], *rank_blocks[2];        /* of data ranks: the most, the mean */
    struct metric *expert_rows[2], *rebalances, *halved; /* likewise of expert ranks */
    struct model_work_stats seen;
};

struct mask_state { /* mask.c */
    uint64_t since_ns, idle_ns;
    struct mask_metrics {
        struct metric *live, *masked, *replayed;
        struct metric_family *rank;
    } m;
};

struct engine {
    struct engine_config c;
    struct group *group;
    struct kv *kv;
    struct xfer *xfer;
    struct sampler *sampler;
    float *logits;
    uint32_t eog[2], n_eog, vocab;
    struct step_scratch scratch;
    struct drafts drafts;
    struct flight *air; /* [group_batches], a ring: the oldest at first_in_air */
    uint32_t n_air, first_in_air;
    uint64_t landed_ns;
    uint32_t context; /* tokens of one sequence: the model's, bounded by the pool */

    struct request *requests; /* all, orders too */
    struct seq **running;     /* by arrival, oldest first */
    uint32_t n_running, cap_running;
    struct seq *waiting, *waiting_tail;
    uint32_t n_waiting;
    struct inbound *inbounds;

    enum wire_role role;
    bool draining, stopping, notify_due;
    bool sleep_wanted, asleep;
    uint64_t wake_retry_ns;
    uint32_t failures; /* steps in a row that the model could not run */
    uint64_t drain_deadline_ns;
    uint64_t now_ns, published_ns, checked_ns, listed_ns;
    float prefill_tokens_per_s, decode_step_s;
    struct engine_status status;
    struct engine_metrics m;
    struct mask_state mask;

    pthread_t thread;
    int wake_fd;
    pthread_mutex_t lock; /* guards the rest */
    struct mail *mail, **mail_tail;
    struct engine_records *out, **out_tail;
    struct engine_status out_status;
    char *out_requests;
    struct kv_event *out_events;
    size_t n_out_events, cap_out_events;
};

/* sleep.c */
void engine_rung(struct engine *g); /* sleeps or wakes, when that is wanted and possible */

/* mask.c: a rank has died, the others go on */
void mask_start(struct engine *g);
void mask_look(struct engine *g);                                      /* whether one has */
void mask_void(struct engine *g, struct seq *const *seqs, uint32_t n); /* in a step of these */

/* deal.c: data ranks of sequences that wait */
struct place_rank;
uint32_t deal_running(const struct engine *g, uint32_t rank); /* sequences there */
/* What each data rank has to do, [kv_ranks()]; then one after the other is dealt, and counted. */
void deal_begin(struct engine *g, struct place_rank *ranks);
void deal_seq(struct engine *g, struct place_rank *ranks, struct seq *s);
void deal_metrics(struct engine_metrics *m);
void deal_measure(struct engine *g); /* data ranks */
void deal_measure_experts(struct engine *g, const struct model_work_stats *now);

/* queue.c: who waits and who runs */
void queue_push(struct engine *g, struct seq *s); /* to the tail */
void queue_push_head(struct engine *g, struct seq *s);
void queue_remove(struct engine *g, struct seq *s);
void running_add(struct engine *g, struct seq *s);
void running_remove(struct engine *g, struct seq *s);
void request_link(struct engine *g, struct request *r);
void request_unlink_free(struct engine *g, struct request *r); /* it holds no block any more */
void request_stop(struct engine *g,
                  struct request *r); /* ends its choices, gives their blocks back */

/* emit.c: records and ends. A request that ended is reaped at the end of the engine's round */
void emit_token(struct engine *g, struct seq *s, uint32_t id, const float *logits);
void emit_given(struct engine *g, struct seq *s,
                const struct wire_record *from); /* what a prefill worker sampled */
void emit_prompt(struct engine *g, struct seq *s, uint32_t position, const float *logits);
void emit_finish(struct engine *g, struct seq *s,
                 uint8_t finish); /* ends the choice; with the last one the request */
void emit_error(struct engine *g, struct request *r, int status, const char *code,
                const char *message, bool retry);
void emit_flush(struct engine *g, struct request *r); /* hands out the records written since */
void emit_refusal(struct engine *g, uint64_t handle, int status, const char *code,
                  const char *message, bool retry);

/* draw.c: what a device is to choose in the step that is laid out, in n segments; NULL: it can't,
 * and draws_token, for the row of a token of that step when it has (scratch.drawn); -EIO as
 * sample_token */
struct model_draw *draws_wanted(struct engine *g, uint32_t n);
int draws_token(const struct engine *g, const float *row, uint32_t *id);

/* step.c */
bool step_run(struct engine *g); /* false: nothing could be run */
/* What a step of these segments gave, in g->logits. */
void step_take(struct engine *g, struct seq *const *seqs, const struct model_segment *segments,
               uint32_t n);
void step_failed(struct engine *g, struct seq *const *seqs, uint32_t n, const struct err *e);
/* A step of n decodes, drafts counted as rows: how long until their tokens came, and what the next
 * such step has to wait for it. */
void step_measure_decode(struct engine *g, uint32_t n, uint32_t rows, double seconds, double each);
void step_fork(struct engine *g,
               struct seq *s); /* a choice that begins where choice 0 has the prompt's KV */
void step_preempt(struct engine *g, struct seq *s);
void step_free(struct engine *g);

/* flight.c: decodes of a pipeline, several batches at a time */
void flights_new(struct engine *g);
void flights_free(struct engine *g); /* lands what is in the air */
/* Whether these picks, of n sequences and so many rows, may join what is in the air. */
bool flight_may_begin(const struct engine *g, uint32_t rows);
void flight_begin(struct engine *g, uint32_t n); /* of g->scratch, laid out */
void flight_land(struct engine *g);              /* the oldest */

/* handover.c: both sides of a transfer */
bool handover_order(struct engine *g, struct request *r); /* false: compute it here */
void handover_abandon(struct engine *g, struct request *r,
                      const char *why); /* its transfer to here, if any */
/* What was ordered for it is given up, and the prompt computed here. */
void handover_again(struct engine *g, struct request *r, const char *why);
void handover_events(struct engine *g);
void handover_grant(struct engine *g); /* to prefill workers that asked, as blocks come free */
void handover_ask(struct engine *g);   /* for orders near the head of the queue */
void handover_prefix(struct engine *g, struct seq *s); /* pushes the blocks that were cached here */
void handover_chunk(struct engine *g, struct seq *s, uint32_t tokens,
                    struct push *p); /* plans a chunk's push */
void handover_layer(struct engine *g, const struct push *p, uint32_t layer);
/* A chunk's push when some ranks' KV must be brought here first. */
int handover_fetched(struct engine *g, const struct push *p, struct err *e) MUST_CHECK;
void handover_done(struct engine *g, struct request *r);
void handover_fail(struct engine *g, struct request *r, const char *why); /* an order */
