/* yaml.h: YAML documents as JSON values (jansson), for manifests and kubeconfig files. YAML 1.2
 * core types; anchors and aliases are refused (a few bytes could grow without bound), so are
 * duplicate keys, and nesting past JSON_MAX_DEPTH. */
#pragma once
#include "lib/json/json.h"

/* New reference: an array with one entry a document (empty documents are left out); NULL with *e
 * ("line 3: …"). JSON text is YAML too. */
json_t *yaml_parse_all(struct str text, size_t max_bytes, struct err *e);
/* New reference to the only document. */
json_t *yaml_parse(struct str text, size_t max_bytes, struct err *e);
json_t *yaml_parse_file(const char *path, size_t max_bytes, struct err *e);
