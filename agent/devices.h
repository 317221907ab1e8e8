/* devices.h: the node's GPUs, their faults, and what follows from them (lib/decide/fault.h).
 *
 * Xid events come from a thread that waits in NVML; ECC counts, row remapping, throttling and lost
 * devices are looked at every few seconds. What a fault asks for goes into the NodeInventory
 * (device's action and reason, the node's quarantine), as the annotation device-fault onto the pods
 * that use the device, and to their launchers (restart in place). That outlives the agent, in
 * <agent-dir>/devices.json: a quarantine until a reboot or until a person lifts it (annotation
 * serving.baton.dev/lift-quarantine of the NodeInventory = "<uuid>" or "all", a new value each
 * time: "all 2"), less for an hour; then the pods' annotation goes, too. One owner thread, the
 * agent's. */
#pragma once
#include "agent/agent.h"

#define ANN_LIFT BATON_PREFIX "lift-quarantine"

void devices_start(struct agent *a); /* no GPU, no library: nothing more is done */
void devices_inventory(struct agent *a, json_t *devices);
const char *devices_quarantine(const struct agent *a); /* of the node; NULL: none */
/* The annotation for a pod whose launcher has these devices ("GPU-…,GPU-…", "0,1", "all"): JSON of
 * the worst fault of one of them that asks for more than a note, NULL: none. What only concerns who
 * ran then (restart, drain) is left out when it was before since_wall_ns. Heap. */
char *devices_fault_of(const struct agent *a, const char *devices, uint64_t since_wall_ns);
bool devices_known(const struct agent *a);            /* the library answers: no fault means none */
void devices_lift(struct agent *a, const char *what); /* the annotation's value */
