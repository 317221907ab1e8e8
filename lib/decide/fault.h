/* fault.h: what a device's fault asks for. Pure: a table of NVIDIA's Xid codes and the other signs
 * of a sick device, and an escalation when the same device offends again.
 *
 * Sources: NVIDIA "XID Errors" (docs.nvidia.com/deploy/xid-errors: meaning and recommended action
 * of each code), "GPU Memory Error Management" (A100 and later: contained and uncontained errors,
 * row remapping), and the list of application faults that NVIDIA's Kubernetes device plugin does
 * not count against a device (13, 31, 43, 45, 68, 109). Times are ns of one clock. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_action {                /* in order of severity */
                    FAULT_NONE,    /* noted only */
                    FAULT_RESTART, /* the ranks on it restart in place: the device is sound */
                    FAULT_DRAIN,   /* the group moves away; the device may be used again */
                    FAULT_QUARANTINE_DEVICE, /* nothing more on it until it is reset (a new agent
                                                boot id or uuid) */
                    FAULT_QUARANTINE_NODE,   /* nothing more on this node until it is rebooted */
};
const char *fault_action_name(enum fault_action a);     /* "None", "Restart", "Drain", … */
enum fault_action fault_action_parse(const char *name); /* unknown or NULL: FAULT_NONE */

enum fault_kind {
    FAULT_XID,           /* code: the Xid */
    FAULT_ECC_DOUBLE,    /* new uncorrected ECC errors; code: how many */
    FAULT_REMAP_FAILED,  /* row remapping failed: memory can't be repaired any more */
    FAULT_REMAP_PENDING, /* rows wait for a reset to be remapped */
    FAULT_THROTTLED,     /* hardware slowdown; code: seconds that it has lasted */
    FAULT_LOST,          /* the device is gone from the list or answers no more */
};

struct fault {
    enum fault_kind kind;
    uint64_t code, at_ns;
};

struct fault_rule { /* of an Xid */
    uint32_t xid;
    enum fault_action action;
    const char *what; /* a few words for people */
};
const struct fault_rule *fault_xid(uint64_t xid); /* NULL: not in the table */

/* What to do about `now`, given this device's earlier faults (any order; older than an hour don't
 * count). Restarts that don't help become a drain, drains a quarantine. reason: a sentence. */
enum fault_action fault_decide(const struct fault *now, const struct fault *earlier, size_t n,
                               char reason[160]);
