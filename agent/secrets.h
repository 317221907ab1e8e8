/* secrets.h: the few Secrets that fetching models needs (a source's token, deployments' peer
 * secrets), asked for one by one and kept for a minute: the agent may get Secrets, not list them.
 * One owner thread. */
#pragma once
#include "lib/kube/client.h"

struct secrets;
/* changed: an answer has come; whoever waits asks again. */
struct secrets *secrets_new(struct kube_client *api, void (*changed)(void *ctx), void *ctx);

enum secret_state {
    SECRET_ASKING, /* changed() will be called */
    SECRET_HERE,
    SECRET_ABSENT, /* no such Secret or key, or no right to see it: *why says which */
};
/* *value (valid until the loop turns) with white space at its end cut off. An answer older than
 * max_age_ns is asked for again (the old one counts meanwhile). */
/* The answer may be out of date (it was refused): the next secrets_get waits for a new one. */
void secrets_forget(struct secrets *s, const char *ns, const char *name, const char *key);
enum secret_state secrets_get(struct secrets *s, const char *ns, const char *name, const char *key,
                              uint64_t max_age_ns, const char **value, const char **why);
