/* status.h: draws one look of `baton status`. */
#pragma once
#include "lib/json/json.h"

/* live: overwrite the screen of a terminal; else plain text without escape codes. */
void status_print(const json_t *look, bool live);
