/* overlap.h: whether a step is computed as two halves whose exchanges run under each other's
 * compute (two-batch overlap), from how long steps took. It pays where the way between ranks costs
 * much and the halves still fill the machine; on other machines, and for few rows, it costs:
 * weights are read twice. So it is measured: steps of about as many rows (powers of two) are run
 * both ways in turn, OVERLAP_TRIES each, and the way whose median is shorter is kept, halves only
 * when they save OVERLAP_GAIN at least. After OVERLAP_STEPS steps it is measured again: contexts
 * grow, loads change.
 *
 * Pure: the caller keeps the struct (zero: nothing known), tells rows and seconds. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define OVERLAP_TRIES   9u
#define OVERLAP_GAIN    0.03
#define OVERLAP_STEPS   4096u
#define OVERLAP_CLASSES 17u /* of rows: 2^0 .. 2^16 */

struct overlap {
    struct overlap_class {
        float seconds[2][OVERLAP_TRIES]; /* whole, halved */
        uint32_t n[2], steps;            /* steps since it was decided */
    } classes[OVERLAP_CLASSES];
};

/* For the next step of `rows` rows, 1 at least. */
bool overlap_next(const struct overlap *o, uint32_t rows);
void overlap_learn(struct overlap *o, uint32_t rows, bool halved, double seconds);
