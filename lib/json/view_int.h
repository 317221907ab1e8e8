/* view_int.h: what the decoders of trees and of text share. */
#pragma once
#include "lib/json/view.h"

#define VIEW_RAW_MAX (4u << 20)

/* Decodes base64 into out (room for s.n / 4 * 3 + 1 bytes, or NULL: only checks), with a NUL. */
int view_b64(struct str s, char *out) MUST_CHECK;
