/* part.h: a file that is being fetched: <name>.part, allocated whole, and beside it
 * <name>.part.json, which chunks of it are there and of what (digest or ETag). Survives a kill at
 * any moment: a chunk is noted after it is written, and the digest of the whole decides in the end.
 *
 * Chunks are claimed and finished by several threads (one lock); one thread waits for the prefix
 * that is complete and hashes it while the others go on. */
#pragma once
#include "lib/base/str.h"

struct part;
/* `mark` names the contents: "sha256:…" or an ETag; another mark, size or chunk size begins anew.
 * "" never resumes. Needs bytes of disk at once (-ENOSPC). */
int part_open(const char *dir, const char *name, uint64_t bytes, uint64_t chunk_bytes,
              const char *mark, struct part **out, struct err *e) MUST_CHECK;
void part_free(struct part *p);                            /* what is there stays */
int part_finish(struct part *p, struct err *e) MUST_CHECK; /* fsync, rename to <name> */
void part_discard(struct part *p);                         /* all that was fetched is wrong */

uint64_t part_bytes(const struct part *p);
uint64_t part_resumed_bytes(const struct part *p); /* that were there at the start */
int part_fd(const struct part *p);

/* Any thread. A chunk to fetch: false when none is left that nobody is at. */
bool part_claim(struct part *p, size_t *chunk, uint64_t *offset, uint64_t *len);
void part_done(struct part *p, size_t chunk);
void part_unclaim(struct part *p, size_t chunk);
int part_write(struct part *p, uint64_t offset, struct str data, struct err *e) MUST_CHECK;
void part_wake(struct part *p); /* part_wait returns: somebody has something to say */
/* Waits until more than `have` bytes from the start are complete, part_wake was called, or
 * timeout_ms is over; returns how many there are. */
uint64_t part_wait(struct part *p, uint64_t have, unsigned timeout_ms);
bool part_idle(struct part *p); /* no chunk is claimed */
