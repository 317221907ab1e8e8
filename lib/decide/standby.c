/* Standby workers in a pass of reconcile(). */
#include "lib/decide/reconcile_int.h"

void standby_want(struct rec *r)
{
    r->want[REC_STANDBY] = rec_bounded(r->s->hot_standby);
}

void standby_rungs(struct rec *r)
{
    for (size_t i = 0; i < r->s->n_pods; i++) {
        const struct rec_slot *t = &r->slots[i];
        if (t->role != REC_STANDBY || t->gone || !rec_live(t->pod) || t->pod->rung == REC_RUNG_HOT)
            continue;
        struct rec_action *a = rec_add(r, REC_RUNG_POD, REC_STANDBY,
                                       rec_text(r, "%s: keep the model loaded", t->pod->name));
        a->name = t->pod->name;
        a->uid = t->pod->uid;
        a->resource_version = t->pod->resource_version;
        a->rung = REC_RUNG_HOT;
    }
}
