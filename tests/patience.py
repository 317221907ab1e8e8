"""How long tests wait, by how busy the machine is: a test that fails only because others compute beside it tells nothing.

Who waits for a condition waits up to `patience(seconds)`, asked anew at each look: it costs nothing, since a wait ends when its condition
comes. What the product promises in seconds is held against `promised(seconds)`, which on a machine with a processor for everyone is just that.
BATON_TEST_PATIENCE stretches both."""
import os

LIMIT = float(os.environ.get("BATON_TEST_PATIENCE", "1"))


def crowding():
    """Processes that want to run for each processor (mean of the last minute), at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def promised(seconds):
    return seconds * LIMIT * crowding()


def patience(seconds):
    return 3 * promised(seconds)
