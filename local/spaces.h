/* spaces.h: namespaces and definitions that are being deleted: their content goes first, then they
 * do. Also what a new data folder begins with, and old events. */
#pragma once
#include "local/server_int.h"

void spaces_first(struct server *s); /* the namespaces and roles of a fresh cluster */
void spaces_run(struct server *s);   /* before each commit */
void spaces_tick(struct server *s);  /* once a second: events older than an hour */
