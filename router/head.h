/* head.h: a model's tokenizer and shape from a worker that has its files (GET /v1/internal/model),
 * for sources that this router does not see. Blocking; any thread. What comes is put into a folder
 * in memory (a GGUF file as far as its head, the rest a hole) that the caller removes. */
#pragma once
#include "lib/base/str.h"

struct head_from {
    const char *const *addresses; /* "host:port" of workers */
    size_t n;
    const char *secret;
};
/* *dir (heap) is the folder, *path (heap) what tokenizer_open takes: the file, or the folder. */
int head_fetch(const struct head_from *from, char **dir, char **path, struct err *e) MUST_CHECK;
void head_remove(char *dir); /* with its files; frees; NULL is fine */
