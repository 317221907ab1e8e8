/* kubelet_records.h: what a data folder's processes are named by, and how they are all ended when
 * no kubelet is left to do it
 * (`baton down` after a kill -9 of everything). Any process; blocking. */
#pragma once
#include "local/kubelet_proc.h"

#define INSTANCE_MAX 17
/* 16 hex digits of the real path of a data folder: in BATON_INSTANCE of every container, in
 * /dev/shm/baton-<instance>. */
void records_instance(const char *data_dir, char out[INSTANCE_MAX]);
uint64_t records_instance_number(const char *data_dir);

/* Ends every container on record and whatever else carries BATON_INSTANCE: SIGTERM, after grace_ms
 * SIGKILL. Returns how many processes there were. Removes the instance's memory under /dev/shm. */
int records_end_all(const char *data_dir, unsigned grace_ms);
