/* revisions.h: the stored revisions of a deployment, compared and turned into patches. Pure but for
 * revisions_list. */
#pragma once
#include "cli/target.h"

/* New reference: the ControllerRevisions that the deployment owns, by number, oldest first; NULL
 * with *e. */
json_t *revisions_list(struct target *t, const json_t *infd, struct err *e);
/* The hash in a revision's name, `<infd>-<hash>`; borrowed. */
const char *revision_hash(const json_t *revision, const json_t *infd);
/* On the heap: "engine.image: a → b, model.sha256: …" (80 characters at most, then "…"). */
char *revisions_change(const json_t *before, const json_t *after);
/* New reference: a merge patch of spec that makes the deployment what the revision stores; empty
 * when it is that already. Fields that no revision covers (numbers, kvCache.ttl and tiers) stay. */
json_t *revisions_patch(const json_t *infd, const json_t *revision);
