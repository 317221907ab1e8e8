"""A few of the kills that `make kills` does (kills.py): the controller dies right after a write, on a real API server."""
import pytest

import kills


@pytest.mark.parametrize("cluster", ["real"], indirect=True)
@pytest.mark.parametrize("story, k", [("create", 9), ("rollout", 12), ("delete", 8)])
def test_killed_after_a_write_another_process_goes_on(world, tmp_path, story, k):
    s = kills.Story(world, story, tmp_path)
    try:
        s.run(k)
    finally:
        s.stop()
