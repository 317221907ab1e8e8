/* embed.h: the manifests that the CLI carries in itself, so that it works wherever it is installed.
 * Constant, NUL-terminated. */
#pragma once
#include "lib/base/str.h"

extern const char embed_crd_infd[], embed_crd_wp[], embed_crd_ninv[], embed_sample_chat[];
