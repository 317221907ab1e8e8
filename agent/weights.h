/* weights.h: the node's weight images, each loaded once and mapped by every worker that uses it
 * (DESIGN §6).
 *
 * An image is a file on a tmpfs, allocated whole when it is made (the agent's memory, within the
 * budget), named by the hash of its key (sha or source, ISA, layout, rank). The first who asks gets
 * a writable fd and fills it; when the filler reports the checksum the manifest beside it is
 * written, and from then on only read-only fds are handed out. A restarted agent adopts complete
 * images by their manifests and removes the rest. When the budget is short, complete images that no
 * connection uses are dropped, least recently used first. One owner thread. */
#pragma once
#include "lib/json/json.h"

struct weights;
struct weights_key {
    const char *source, *sha256, *isa,
        *layout; /* sha256 "" : a file's path, size and time stand for it */
    int64_t rank;
};

int weights_open(const char *dir, uint64_t budget_bytes, struct weights **out,
                 struct err *e) MUST_CHECK;
void weights_close(struct weights *w);    /* segments stay */
void weights_drop_all(struct weights *w); /* that nobody uses: their memory is given back */

enum weights_state { WEIGHTS_FILL, WEIGHTS_READY, WEIGHTS_WAIT };
/* `user` names who asks (a connection); one image a user. On WEIGHTS_FILL *fd is writable, on
 * WEIGHTS_READY read-only; it is the caller's. -ENOSPC ("needs 9.1 GiB, …") when the budget does
 * not allow it. */
int weights_get(struct weights *w, const void *user, const struct weights_key *key, uint64_t bytes,
                enum weights_state *state, int *fd, struct err *e) MUST_CHECK;
/* The user maps this image already (its agent connection is new): it is counted, if the image is
 * there and complete. */
void weights_hold(struct weights *w, const void *user, const struct weights_key *key);
/* The user has filled its image. */
int weights_filled(struct weights *w, const void *user, const char *checksum,
                   struct err *e) MUST_CHECK;
/* The user is gone or needs its image no more; an unfinished image is removed. */
void weights_release(struct weights *w, const void *user);

struct weights_info {
    const char *source, *sha256, *isa, *layout, *checksum;
    int64_t rank;
    uint64_t bytes;
    unsigned users;
    bool ready;
};
size_t weights_count(const struct weights *w);
void weights_info(const struct weights *w, size_t i, struct weights_info *out);
uint64_t weights_used_bytes(const struct weights *w);
uint64_t weights_budget_bytes(const struct weights *w);
unsigned weights_fills(const struct weights *w); /* images filled by this agent process */
