/* table_int.h: what the files of the tables share. */
#pragma once
#include "local/table.h"

void cell_age(const json_t *doc, json_t *cells);
void cell_or(json_t *cells, const char *text, const char *fallback);
void table_pod(const json_t *doc, json_t *cells);
