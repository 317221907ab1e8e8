/* source.h: where a model comes from, as a URL of spec.model.source:
 *
 *   hf://org/repo[/path/in/repo][@revision]   one file, or the whole repository (its safetensors)
 *   https://host/path                         one file
 *   file:///path                              on the node; a file or a folder, used in place
 *   pvc://claim/path                          in a PersistentVolumeClaim, mounted into the pod
 *   image://reference[?path=/path]            an image volume, mounted into the pod
 *
 * Texts come from users: everything is bounded and paths can't climb out of their folder. */
#pragma once
#include "lib/base/str.h"

enum source_kind { SOURCE_FILE, SOURCE_HF, SOURCE_HTTPS, SOURCE_PVC, SOURCE_IMAGE };

#define SOURCE_TEXT_MAX 1024
#define SOURCE_KEY_MAX  33

struct source {
    enum source_kind kind;
    char text[SOURCE_TEXT_MAX + 1]; /* the URL itself */
    char repo[256];                 /* hf: org/repo; pvc: claim; image: reference */
    char path[SOURCE_TEXT_MAX + 1]; /* hf, pvc, image: below it, "" for all; file: absolute */
    char revision[129];             /* hf: "main" when absent */
};
int source_parse(const char *text, struct source *out, struct err *e) MUST_CHECK;
/* Agents fetch it into the node's model cache (hf, https). */
bool source_fetched(const struct source *s);

/* The name of the model's folder in a cache: of the digest when the model is pinned (then where it
 * comes from doesn't matter), else of source and endpoint. */
void source_key(const char *source, const char *endpoint, const char *sha256,
                char out[SOURCE_KEY_MAX]);

/* A file name below a folder that is safe to make: relative, no "." or ".." parts, no control
 * characters, at most 255 bytes, no part that begins with a dot. */
bool source_name_safe(struct str name);
