/* view_scan.h: views (view.h) straight from JSON text, by the pull scanner (scan.h): what
 * view_decode gives for the text's tree, at a fifth of the cost, because members that the table
 * does not name are only walked over. No path of a table may be the beginning of another one of the
 * same table, and none may hold numbers of array elements. The object and all in it lie in the
 * arena: nothing points into the text. */
#pragma once
#include "lib/json/scan.h"
#include "lib/json/view.h"

/* 0, or a negative errno with *e: malformed text, or a value of another type. */
int view_scan(const struct view *v, struct str text, struct arena *a, void **out,
              struct err *e) MUST_CHECK;
/* The value that token t of a running scan begins. After a failure the scan can't go on. */
int view_scan_value(const struct view *v, struct scan *s, const struct scan_tok *t, struct arena *a,
                    void **out, struct err *e) MUST_CHECK;
