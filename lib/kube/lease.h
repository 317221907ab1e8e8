/* lease.h: leader election on a coordination.k8s.io/v1 Lease. Expiry is judged by the local clock
 * since the last change seen, never by the other's renewTime (clocks differ). Losing it calls
 * on_lost once: the program must stop writing and exit. kube_lease_valid() is the fence to check
 * before a destructive write. One owner thread. Rules: client-go tools/leaderelection. */
#pragma once
#include "lib/kube/client.h"

struct kube_lease;
struct kube_lease_config {
    const char *namespace, *name;
    const char *identity;                              /* unique a process: pod name + random */
    unsigned duration_ms, renew_deadline_ms, retry_ms; /* 0: 15,000, 10,000, 2,000 */
    void (*on_acquired)(void *ctx);
    void (*on_lost)(void *ctx);
    void (*on_leader)(const char *identity, void *ctx); /* optional: who leads now */
    void *ctx;
};
int kube_lease_start(struct kube_client *c, const struct kube_lease_config *cfg,
                     struct kube_lease **out, struct err *e) MUST_CHECK;
/* Gives the lease back when held (done may be NULL, is called when the answer came or after a
 * second), then frees. */
void kube_lease_release(struct kube_lease *l, void (*done)(void *ctx), void *ctx);
bool kube_lease_valid(const struct kube_lease *l); /* held and not past the renew deadline */
