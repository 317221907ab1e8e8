#include "lib/decide/fault.h"

#include "lib/decide/guard.h"

#include <stdio.h>
#include <string.h>

#define HOUR_NS         (3600ull * 1000000000)
#define RESTARTS_MAX    3 /* the third application fault of an hour on one device is no accident */
#define DRAINS_MAX      2 /* the second hardware fault of an hour */
#define THROTTLED_MAX_S 600 /* so long in hardware slowdown: work belongs elsewhere */

static const char *const names[] = {"None", "Restart", "Drain", "QuarantineDevice",
                                    "QuarantineNode"};

const char *fault_action_name(enum fault_action a)
{
    return names[a <= FAULT_QUARANTINE_NODE ? a : FAULT_NONE];
}

enum fault_action fault_action_parse(const char *name)
{
    for (int i = 0; name && i <= FAULT_QUARANTINE_NODE; i++)
        if (strcmp(names[i], name) == 0)
            return (enum fault_action)i;
    return FAULT_NONE;
}

/* In order of code. "Reset" faults quarantine the device: only a reset, which needs it idle, helps.
 */
static const struct fault_rule rules[] = {
    {8, FAULT_RESTART, "the GPU stopped processing"},
    {13, FAULT_RESTART, "graphics engine exception: usually the application"},
    {31, FAULT_RESTART, "memory page fault: usually the application"},
    {32, FAULT_RESTART, "corrupted push buffer"},
    {43, FAULT_RESTART, "the GPU stopped processing this application"},
    {45, FAULT_NONE, "cleanup after an earlier fault"},
    {48, FAULT_QUARANTINE_DEVICE, "double-bit ECC error: needs a reset"},
    {61, FAULT_QUARANTINE_DEVICE, "microcontroller breakpoint: needs a reset"},
    {62, FAULT_QUARANTINE_DEVICE, "microcontroller halt: needs a reset"},
    {63, FAULT_NONE, "a row was recorded for remapping: repaired by the next reset"},
    {64, FAULT_QUARANTINE_DEVICE, "recording a row for remapping failed"},
    {68, FAULT_RESTART, "video decoder exception"},
    {69, FAULT_RESTART, "graphics engine class error"},
    {74, FAULT_QUARANTINE_DEVICE, "NVLink error: needs a reset"},
    {79, FAULT_QUARANTINE_NODE, "the GPU has fallen off the bus: the node needs a reboot"},
    {92, FAULT_DRAIN, "high rate of single-bit ECC errors"},
    {94, FAULT_RESTART, "contained memory error: only its application is affected"},
    {95, FAULT_QUARANTINE_DEVICE, "uncontained memory error: needs a reset"},
    {109, FAULT_RESTART, "context switch timeout"},
    {110, FAULT_QUARANTINE_DEVICE, "security fault: needs a reset"},
    {119, FAULT_QUARANTINE_DEVICE, "the GPU's system processor does not answer: needs a reset"},
    {120, FAULT_QUARANTINE_DEVICE, "error of the GPU's system processor: needs a reset"},
    {121, FAULT_DRAIN, "error of the chip-to-chip link"},
    {136, FAULT_DRAIN, "link training failed"},
    {140, FAULT_QUARANTINE_DEVICE, "unrecovered ECC error: needs a reset"},
    {143, FAULT_QUARANTINE_NODE, "the GPU could not be initialised"},
    {144, FAULT_DRAIN, "NVLink: SAW error"},
    {145, FAULT_DRAIN, "NVLink: RLW error"},
    {146, FAULT_DRAIN, "NVLink: TLW error"},
    {147, FAULT_DRAIN, "NVLink: TREX error"},
    {148, FAULT_DRAIN, "NVLink: NVLPW_CTRL error"},
    {149, FAULT_DRAIN, "NVLink: NETIR error"},
    {150, FAULT_DRAIN, "NVLink: MSE error"},
};

const struct fault_rule *fault_xid(uint64_t xid)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].xid == xid)
            return &rules[i];
    return NULL;
}

/* The action of one fault by itself. Unknown Xids are moved away from: that costs little, and
 * staying may cost a stream. */
static enum fault_action alone(const struct fault *f, char reason[160])
{
    const struct fault_rule *rule = f->kind == FAULT_XID ? fault_xid(f->code) : NULL;
    unsigned long long code = f->code;
    switch (f->kind) {
    case FAULT_XID:
        snprintf(reason, 160, "Xid %llu: %s", code, rule ? rule->what : "not a code known here");
        return rule ? rule->action : FAULT_DRAIN;
    case FAULT_ECC_DOUBLE:
        snprintf(reason, 160, "%llu uncorrected ECC errors: needs a reset", code);
        return FAULT_QUARANTINE_DEVICE;
    case FAULT_REMAP_FAILED:
        snprintf(reason, 160, "row remapping failed: the memory can't be repaired");
        return FAULT_QUARANTINE_DEVICE;
    case FAULT_REMAP_PENDING:
        snprintf(reason, 160, "memory rows wait for a reset to be remapped");
        return FAULT_NONE;
    case FAULT_THROTTLED:
        snprintf(reason, 160, "slowed down by its hardware for %llu s", code);
        return code >= THROTTLED_MAX_S ? FAULT_DRAIN : FAULT_NONE;
    case FAULT_LOST:
        snprintf(reason, 160, "the device does not answer any more: the node needs a reboot");
        return FAULT_QUARANTINE_NODE;
    }
    return FAULT_NONE;
}

static unsigned repeats(const struct fault *now, const struct fault *earlier, size_t n,
                        enum fault_action at_least)
{
    char ignored[160];
    unsigned count = 1;
    for (size_t i = 0; i < n; i++) {
        bool recent = earlier[i].at_ns + HOUR_NS > now->at_ns;
        count += recent && alone(&earlier[i], ignored) >= at_least;
    }
    return count;
}

static void add(char reason[160], const char *more)
{
    size_t n = strlen(reason);
    snprintf(reason + n, 160 - n, "%s", more);
}

enum fault_action fault_decide(const struct fault *now, const struct fault *earlier, size_t n,
                               char reason[160])
{
    enum fault_action a = alone(now, reason);
    if (!GUARD(fault_by_code))
        a = FAULT_NONE;
    if (!GUARD(fault_escalates))
        return a;
    if (a == FAULT_RESTART && repeats(now, earlier, n, FAULT_RESTART) >= RESTARTS_MAX) {
        add(reason, "; restarts did not help");
        a = FAULT_DRAIN;
    } else if (a == FAULT_DRAIN && now->kind == FAULT_XID &&
               repeats(now, earlier, n, FAULT_DRAIN) >= DRAINS_MAX) {
        add(reason, "; again within an hour");
        a = FAULT_QUARANTINE_DEVICE;
    }
    return a;
}
