/* source.h: what a pod needs of its model's source (pvc://, image://). */
#pragma once
#include "controller/controller.h"

void source_mount(const struct kube_infd *d, json_t *spec); /* of Baton's own worker pod */
/* Why spec.model.source can't be used (until the next call); NULL: it can. */
const char *source_invalid(const struct kube_infd *d);
