/* Reviews: who a token is, what a user may do. Every authenticated user may do everything here
 * (roles are stored for clusters), and the answers say so. */
#include "local/auth.h"
#include "local/sub.h"

#include "lib/base/clock.h"

#include <stdlib.h>

static const char why_allowed[] = "the local API server allows everything to authenticated users";

static void token_review(struct server *s, json_t *doc)
{
    const struct user *u = auth_by_token(s, json_str_at(doc, "spec.token", ""));
    json_object_set_new(doc, "status",
                        u ? json_pack("{s:b,s:o}", "authenticated", 1, "user", auth_user_info(u))
                          : json_pack("{s:b,s:s}", "authenticated", 0, "error", "unknown token"));
}

static void rules_review(json_t *doc)
{
    json_object_set_new(doc, "status",
                        json_pack("{s:[{s:[s],s:[s],s:[s]}],s:[{s:[s],s:[s]}],s:b}",
                                  "resourceRules", "verbs", "*", "apiGroups", "*", "resources", "*",
                                  "nonResourceRules", "verbs", "*", "nonResourceURLs", "*",
                                  "incomplete", 0));
}

static int check_access(struct call *c, const json_t *doc, json_t **st)
{
    const json_t *spec = json_object_get(doc, "spec");
    bool res = json_is_object(json_object_get(spec, "resourceAttributes"));
    bool non = json_is_object(json_object_get(spec, "nonResourceAttributes"));
    if (res != non)
        return 0;
    json_t *causes = json_array();
    cause_invalid(
        causes, "spec.resourceAttributes", NULL,
        res ? "cannot be specified in combination with nonResourceAttributes"
            : "exactly one of nonResourceAttributes or resourceAttributes must be specified");
    return status_invalid(st, c->r->group, c->r->kind, "", causes);
}

static void fill(struct call *c, json_t *doc)
{
    char api[128];
    json_object_set_new(doc, "kind", json_string(c->r->kind));
    json_object_set_new(doc, "apiVersion", json_string(resource_api_version(c->r, api)));
    if (!json_object_get(doc, "metadata"))
        json_object_set_new(doc, "metadata", json_pack("{s:n}", "creationTimestamp"));
}

bool sub_review(struct call *c)
{
    const char *kind = c->r->kind;
    json_t *st = NULL, *doc = call_body(c, &st);
    int rc = st ? -1 : 0;
    if (!rc && !json_is_object(doc))
        rc = status_bad_request(&st, "the request has no body");
    if (!rc && strstr(kind, "AccessReview"))
        rc = check_access(c, doc, &st);
    if (rc) {
        json_decref(doc);
        call_fail(c, st);
        return true;
    }
    fill(c, doc);
    if (!strcmp(kind, "TokenReview"))
        token_review(c->s, doc);
    else if (!strcmp(kind, "SelfSubjectReview"))
        json_object_set_new(doc, "status", json_pack("{s:o}", "userInfo", auth_user_info(c->user)));
    else if (!strcmp(kind, "SelfSubjectRulesReview"))
        rules_review(doc);
    else
        json_object_set_new(doc, "status",
                            json_pack("{s:b,s:s}", "allowed", 1, "reason", why_allowed));
    call_reply(c, 201, doc);
    return true;
}

void sub_token(struct call *c)
{
    json_t *st = NULL, *doc = call_body(c, &st);
    const struct obj *sa = bucket_get(c->r->bucket, c->ns, c->name);
    int rc = st ? -1 : c->verb == VERB_CREATE ? 0 : status_method(&st);
    if (!rc && !sa)
        rc = status_not_found(&st, c->r, c->name);
    if (rc) {
        json_decref(doc);
        call_fail(c, st);
        return;
    }
    if (!doc)
        doc = json_object();
    int64_t life = json_int_at(doc, "spec.expirationSeconds", 3600);
    if (life < 600)
        life = 600;
    if (life > 86400)
        life = 86400;
    uint64_t at = clock_wall_ns() + (uint64_t)life * NS_PER_S;
    const struct user *u = auth_service_account(c->s, c->ns, c->name, sa->uid, at);
    char when[40];
    json_object_set_new(doc, "kind", json_string("TokenRequest"));
    json_object_set_new(doc, "apiVersion", json_string("authentication.k8s.io/v1"));
    json_object_set_new(doc, "status",
                        json_pack("{s:s,s:s}", "token", u->token, "expirationTimestamp",
                                  clock_rfc3339(at, 0, when)));
    call_reply(c, 201, doc);
}
