#include "agent/lead.h"

#include <stdio.h>
#include <stdlib.h>

static const char *role_in(const json_t *pod)
{
    return json_string_value(json_object_get(json_at(pod, "metadata.labels"), LABEL_ROLE));
}

static bool serves(const char *role)
{
    return role && strcmp(role, "standby") != 0;
}

/* A pod seen for the first time while it begins: it was asked for when it was created. */
static void born(struct apod *p, const json_t *now)
{
    uint64_t created;
    const char *text = json_str_at(now, "metadata.creationTimestamp", "");
    const json_t *notes = json_at(now, "metadata.annotations");
    bool ran = json_object_get(notes, ANN_INCARNATION) || json_object_get(notes, ANN_EPOCH);
    if (!serves(role_in(now)) || ran || clock_parse_rfc3339(text, &created))
        return;
    p->asked_wall_ns = created;
    p->asked_rung = NULL; /* cached or cold: known when the model is here */
}

void lead_asked(struct apod *p, const json_t *now)
{
    if (!p->obj) {
        born(p, now);
        return;
    }
    if (!serves(role_in(p->obj)) && serves(role_in(now))) {
        bool warm = strcmp(json_str_at(p->reported, "rung", "hot"), "warm") == 0;
        p->asked_wall_ns = clock_wall_ns();
        p->asked_rung = json_bool_at(p->reported, "ready", false) ? (warm ? "warm" : "hot") : NULL;
    } else if (!serves(role_in(now))) {
        p->asked_wall_ns = 0;
    }
}

void lead_serves(struct apod *p)
{
    uint64_t now = clock_wall_ns();
    struct launcher *l = sock_launcher(p->a, p->uid);
    const char *rung = p->asked_rung;
    char text[96];
    if (!p->asked_wall_ns || now < p->asked_wall_ns)
        return;
    if (!rung)
        rung = l && l->fetched ? "cold" : "cached";
    double seconds = (double)(now - p->asked_wall_ns) / 1e9;
    p->asked_wall_ns = 0;
    if (json_is_object(json_object_get(p->reported, "crash")))
        return; /* a lead with a crash in it says nothing */
    snprintf(text, sizeof text, "{\"rung\":\"%s\",\"seconds\":%.3f}", rung, seconds);
    free(p->lead);
    p->lead = xstrdup(text);
    log_info("serving", LS("pod", p->name), LS("from", rung), LF("seconds", seconds));
}
