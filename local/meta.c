#include "local/meta.h"
#include "local/names.h"

#include "lib/base/clock.h"
#include "lib/base/rng.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

char *now_rfc3339(char out[40])
{
    return clock_rfc3339(clock_wall_ns(), 0, out);
}

void new_uid(char out[37])
{
    uint8_t b[16];
    rng_secret(b, sizeof b);
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    char hex[33];
    str_to_hex(b, sizeof b, hex);
    snprintf(out, 37, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
}

int meta_place(struct call *c, json_t *doc, json_t **st)
{
    json_t *meta = json_object_get(doc, "metadata");
    const char *name = json_str_at(meta, "name", ""), *ns = json_str_at(meta, "namespace", "");
    if (resource_has(c->r, R_NAMESPACED)) {
        if (!*ns)
            json_object_set_new(meta, "namespace", json_string(c->ns));
        else if (strcmp(ns, c->ns) != 0)
            return status_bad_request(st, "the namespace of the provided object does not match the "
                                          "namespace sent on the request");
    } else {
        json_object_del(meta, "namespace");
    }
    if (!c->name)
        return 0;
    if (!*name)
        json_object_set_new(meta, "name", json_string(c->name));
    else if (strcmp(name, c->name) != 0)
        return status_bad_request(
            st, "the name of the object (%s) does not match the name on the URL (%s)", name,
            c->name);
    return 0;
}

/* Five random characters without vowels, as apimachinery draws them. */
static void generate_name(json_t *meta, const char *base)
{
    static const char abc[] = "bcdfghjklmnpqrstvwxz2456789";
    char tail[6] = {0};
    for (int i = 0; i < 5; i++)
        tail[i] = abc[rng_secret_u64() % (sizeof abc - 1)];
    json_object_set_new(meta, "name", json_sprintf("%.58s%s", base, tail));
}

int meta_new(struct call *c, json_t *doc, json_t **st)
{
    json_t *meta = json_object_get(doc, "metadata");
    const char *name = json_str_at(meta, "name", ""), *base = json_str_at(meta, "generateName", "");
    if (*json_str_at(meta, "resourceVersion", ""))
        return status_set(st, 500, "", NULL, NULL,
                          "resourceVersion should not be set on objects to be created");
    if (!*name && *base)
        generate_name(meta, base);
    char uid[37], now[40];
    new_uid(uid);
    json_object_set_new(meta, "uid", json_string(uid));
    json_object_set_new(meta, "creationTimestamp", json_string(now_rfc3339(now)));
    static const char *const drop[] = {"deletionTimestamp", "deletionGracePeriodSeconds",
                                       "selfLink", "generation", "resourceVersion"};
    for (size_t i = 0; i < sizeof drop / sizeof *drop; i++)
        json_object_del(meta, drop[i]);
    if (resource_has(c->r, R_GENERATION))
        json_object_set_new(meta, "generation", json_integer(1));
    return 0;
}

static const char *check_name(const struct resource *r, const char *name)
{
    if (!strcmp(r->group, "rbac.authorization.k8s.io"))
        return name_check_path_segment(name);
    if (!r->group[0] && !strcmp(r->plural, "namespaces"))
        return name_check_dns_label(name);
    if (!r->group[0] && !strcmp(r->plural, "services"))
        return name_check_dns_label(name);
    return name_check_dns_subdomain(name);
}

static void check_labels(const json_t *meta, json_t *causes)
{
    const char *key;
    json_t *v;
    json_object_foreach (json_object_get((json_t *)meta, "labels"), key, v) {
        const char *why = name_check_label_key(key);
        json_t *k = json_string(key);
        if (why)
            cause_invalid(causes, "metadata.labels", k, "%s", why);
        why = json_is_string(v) ? name_check_label_value(json_string_value(v)) : NULL;
        if (why)
            cause_invalid(causes, "metadata.labels", v, "%s", why);
        json_decref(k);
    }
}

static void lower(char *s)
{
    for (; *s; s++)
        *s = (char)tolower((unsigned char)*s);
}

static void check_annotations(const json_t *meta, json_t *causes)
{
    const char *key;
    json_t *v;
    size_t total = 0;
    json_object_foreach (json_object_get((json_t *)meta, "annotations"), key, v) {
        CLEANUP(free_charp) char *low = xstrdup(key);
        lower(low);
        const char *why = name_check_label_key(low);
        json_t *k = json_string(key);
        if (why)
            cause_invalid(causes, "metadata.annotations", k, "%s", why);
        json_decref(k);
        total += strlen(key) + json_string_length(v);
    }
    if (total > 256 * 1024)
        json_array_append_new(causes,
                              json_pack("{s:s,s:s,s:s}", "reason", "FieldValueTooLong", "message",
                                        "Too long: may not be more than 262144 bytes", "field",
                                        "metadata.annotations"));
}

static void check_owners(const json_t *meta, json_t *causes)
{
    static const char *const need[] = {"apiVersion", "kind", "name", "uid"};
    size_t i, controllers = 0;
    json_t *o;
    json_array_foreach (json_object_get(meta, "ownerReferences"), i, o) {
        for (size_t k = 0; k < 4; k++) {
            CLEANUP(free_charp)
            char *at = xasprintf("metadata.ownerReferences[%zu].%s", i, need[k]);
            if (!*json_str_at(o, need[k], ""))
                cause_required(causes, at, "must not be empty");
        }
        controllers += json_bool_at(o, "controller", false);
    }
    if (controllers > 1)
        cause_invalid(causes, "metadata.ownerReferences", json_object_get(meta, "ownerReferences"),
                      "Only one reference can have Controller set to true");
}

static bool in_list(const json_t *list, const json_t *v)
{
    size_t i;
    json_t *x;
    json_array_foreach ((json_t *)list, i, x)
        if (json_equal(x, (json_t *)v))
            return true;
    return false;
}

static void check_finalizers(const struct resource *r, const json_t *meta, const json_t *old,
                             json_t *causes)
{
    size_t i;
    json_t *f;
    json_array_foreach (json_object_get(meta, "finalizers"), i, f) {
        CLEANUP(free_charp) char *at = xasprintf("metadata.finalizers[%zu]", i);
        const char *name = json_is_string(f) ? json_string_value(f) : "";
        const char *why = name_check_label_key(name);
        if (!why && !resource_has(r, R_CUSTOM) && !strchr(name, '/') && strcmp(name, "orphan") &&
            strcmp(name, "foregroundDeletion"))
            why = "name is neither a standard finalizer name nor is it fully qualified";
        if (why)
            cause_invalid(causes, at, f, "%s", why);
        if (old && json_at(old, "metadata.deletionTimestamp") &&
            !in_list(json_at(old, "metadata.finalizers"), f))
            cause_forbidden(
                causes, "metadata.finalizers",
                "no new finalizers can be added if the object is being deleted, found new "
                "finalizers []string{\"%s\"}",
                name);
    }
}

void meta_validate(const struct resource *r, const json_t *doc, const json_t *old, json_t *causes)
{
    const json_t *meta = json_object_get(doc, "metadata"), *name = json_object_get(meta, "name");
    const char *n = json_is_string(name) ? json_string_value(name) : "";
    if (!*n) {
        cause_required(causes, "metadata.name", "name or generateName is required");
    } else if (!old) {
        const char *why = check_name(r, n);
        if (why)
            cause_invalid(causes, "metadata.name", name, "%s", why);
    }
    check_labels(meta, causes);
    check_annotations(meta, causes);
    check_owners(meta, causes);
    check_finalizers(r, meta, old, causes);
}

/* Kinds whose objects can't be replaced without saying which version was read. */
static bool needs_rv(const struct resource *r)
{
    static const char *const plurals[] = {"leases", "customresourcedefinitions",
                                          "poddisruptionbudgets", NULL};
    for (size_t i = 0; plurals[i]; i++)
        if (!strcmp(r->plural, plurals[i]))
            return true;
    return resource_has(r, R_CUSTOM);
}

int meta_check_update(struct call *c, const struct obj *old, const json_t *doc, enum write_kind how,
                      json_t **st)
{
    const json_t *meta = json_object_get(doc, "metadata");
    const char *uid = json_str_at(meta, "uid", ""), *rv = json_str_at(meta, "resourceVersion", "");
    char now[24];
    snprintf(now, sizeof now, "%llu", (unsigned long long)old->rv);
    if (*uid && strcmp(uid, old->uid) != 0) {
        CLEANUP(free_charp)
        char *why = xasprintf(
            "Precondition failed: UID in precondition: %s, UID in object meta: %s", uid, old->uid);
        return status_conflict(st, c->r, old->name, why);
    }
    if (*rv && strcmp(rv, now) != 0)
        return status_modified(st, c->r, old->name);
    if (!*rv && how == WRITE_PUT && needs_rv(c->r)) {
        json_t *causes = json_array();
        json_t *v = json_integer(0);
        cause_invalid(causes, "metadata.resourceVersion", v, "must be specified for an update");
        json_decref(v);
        return status_invalid(st, c->r->group, c->r->plural, old->name, causes);
    }
    return 0;
}

void meta_keep(const json_t *old, json_t *doc)
{
    static const char *const kept[] = {"uid",
                                       "creationTimestamp",
                                       "deletionTimestamp",
                                       "namespace",
                                       "deletionGracePeriodSeconds",
                                       "generation",
                                       "selfLink",
                                       "name",
                                       "resourceVersion",
                                       "generateName"};
    json_t *meta = json_object_get(doc, "metadata");
    const json_t *before = json_object_get(old, "metadata");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        json_t *v = json_object_get(before, kept[i]);
        if (v)
            json_object_set(meta, kept[i], v);
        else
            json_object_del(meta, kept[i]);
    }
}
