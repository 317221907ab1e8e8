/* scale_record.h: a scaling decision with everything it was made from, as one line of JSON, and the
 * same decision made again from such a line. Keys are sorted and numbers keep all their bits, so
 * that a replay gives the same bytes or shows what differs. */
#pragma once
#include "lib/decide/scale.h"
#include "lib/json/json.h"

#define SCALE_RECORD_VERSION 1
#define SCALE_RECORD_BYTES   (8u << 20)

/* What the decider doesn't look at, carried along. */
struct scale_about {
    const char *at; /* RFC 3339 */
    const char *namespace, *infd;
    const char *instance; /* which controller decided */
};
/* The plan as it is after scale_plan(). New reference. */
json_t *scale_record(const struct scale_plan *p, const struct scale_about *about);
/* The record's line, without the newline, appended. */
int scale_record_write(const json_t *record, struct buf *out) MUST_CHECK;

/* Decides again from a record's inputs. New reference to the record as it comes out now, or NULL
 * with *e when it is no record. */
json_t *scale_replay(const json_t *record, struct err *e);
