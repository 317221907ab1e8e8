/* modes.h: what baton-worker does besides serving: --plan, --fill and --score (docs/contracts.md).
 * Each prints one JSON object on stdout. */
#pragma once
#include "worker/options.h"

int mode_plan(const struct options *o, struct err *e) MUST_CHECK;
int mode_fill(const struct options *o, struct err *e) MUST_CHECK;
int mode_score(const struct options *o, struct err *e) MUST_CHECK;
