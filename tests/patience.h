/* How long C tests wait, by how busy the machine is (tests/patience.py says why). */
#pragma once

#include <stdlib.h>
#include <unistd.h>

/* Processes that want to run for each processor, 1 to 16, the mean of the last minute rounded up.
 */
static inline unsigned crowding(void)
{
    double load = 0;
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    if (getloadavg(&load, 1) != 1 || n < 1 || load <= (double)n)
        return 1;
    double each = load / (double)n;
    return each > 15 ? 16 : (unsigned)each + 1;
}
