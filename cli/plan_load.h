/* plan_load.h: models and devices for `baton plan` from files: a GGUF file, a Hugging Face
 * config.json (or its folder), a model or a device profile as JSON. */
#pragma once
#include "lib/cost/profile.h"

/* `what` is a built-in name or a path. -ENOENT / -EINVAL with a sentence that lists the built-in
 * names. */
int plan_load_model(const char *what, struct model_profile *out, struct err *e) MUST_CHECK;
int plan_load_device(const char *what, struct device_profile *out, struct err *e) MUST_CHECK;
