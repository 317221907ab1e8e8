/* The history of revisions. They are immutable: one is made, numbered anew when it is wanted again,
 * and removed when it is old and no pod has it. */
#include "lib/decide/guard.h"
#include "lib/decide/reconcile_int.h"

static bool same(const char *a, const char *b)
{
    return a && b && strcmp(a, b) == 0;
}

const struct rec_revision *rec_stored(const struct rec *r, const char *role_revision)
{
    for (size_t i = 0; i < r->s->n_revisions; i++)
        for (int k = 0; k < REC_ROLES; k++)
            if (same(r->s->revisions[i].roles[k], role_revision))
                return &r->s->revisions[i];
    return NULL;
}

static bool of_revision(const struct rec_revision *v, const struct rec_slot *t)
{
    return same(v->roles[t->pod->role], t->pod->revision);
}

static bool in_use(const struct rec *r, const struct rec_revision *v)
{
    if (same(v->hash, r->s->revision))
        return true;
    for (size_t i = 0; i < r->n_slots; i++)
        if (of_revision(v, &r->slots[i]))
            return true;
    return false;
}

/* The oldest ones beyond the history, unless pods have them: those could not be made again. */
static void forget(struct rec *r, size_t kept)
{
    const struct rec_snapshot *s = r->s;
    int64_t above = INT64_MIN;
    while (kept > REC_HISTORY) {
        const struct rec_revision *oldest = NULL;
        for (size_t i = 0; i < s->n_revisions; i++) {
            const struct rec_revision *v = &s->revisions[i];
            if (v->number > above && (!oldest || v->number < oldest->number) &&
                (!in_use(r, v) || !GUARD(revision_in_use)))
                oldest = v;
        }
        if (!oldest)
            return;
        struct rec_action *a =
            rec_add(r, REC_DELETE_REVISION, REC_NO_ROLE, "older than the history that is kept");
        a->name = oldest->name;
        a->uid = oldest->uid;
        above = oldest->number;
        kept--;
    }
}

/* That of most ready groups; the wanted one and then the newest where numbers are equal. */
static const char *current(const struct rec *r)
{
    const struct rec_snapshot *s = r->s;
    const struct rec_revision *best = NULL;
    int32_t most = 0;
    for (size_t i = 0; i < s->n_revisions; i++) {
        const struct rec_revision *v = &s->revisions[i];
        int32_t n = 0;
        for (size_t k = 0; k < r->n_slots; k++)
            n += r->slots[k].pod->ready && of_revision(v, &r->slots[k]);
        bool better = n > most || (n && n == most &&
                                   (same(v->hash, s->revision) ||
                                    (!same(best->hash, s->revision) && v->number > best->number)));
        if (better) {
            best = v;
            most = n;
        }
    }
    return best ? best->hash : NULL;
}

void rec_revisions(struct rec *r)
{
    const struct rec_snapshot *s = r->s;
    const struct rec_revision *wanted = NULL;
    int64_t newest = 0;
    if (!s->revision)
        return;
    r->plan->revision = s->revision;
    r->plan->current = current(r);
    if (r->reject_reason)
        return;
    for (size_t i = 0; i < s->n_revisions; i++) {
        const struct rec_revision *v = &s->revisions[i];
        newest = v->number > newest ? v->number : newest;
        if (same(v->hash, s->revision))
            wanted = v;
    }
    if (!wanted) {
        struct rec_action *a = rec_add(r, REC_CREATE_REVISION, REC_NO_ROLE,
                                       rec_text(r, "revision %s is new", s->revision));
        a->name = rec_text(r, "%s-%s", s->name, s->revision);
        a->revision = s->revision;
        a->number64 = newest + 1;
    } else if (wanted->number < newest) {
        struct rec_action *a = rec_add(r, REC_NUMBER_REVISION, REC_NO_ROLE,
                                       rec_text(r, "revision %s is wanted again", s->revision));
        a->name = wanted->name;
        a->uid = wanted->uid;
        a->number64 = newest + 1;
    }
    forget(r, s->n_revisions + !wanted);
}
