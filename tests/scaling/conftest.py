import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import world as w  # noqa: E402


@pytest.fixture(scope="session")
def cluster():
    c = w.start_cluster()
    c.side = "real"
    yield c
    c.stop()


@pytest.fixture
def world(cluster):
    cluster.count = getattr(cluster, "count", 0) + 1
    one = w.World(cluster, f"s{cluster.count}")
    yield one
    for c in one.controllers:
        c.stop()
    one.kubectl("delete", "infd", "--all", "--wait=false", check=False)


@pytest.fixture
def router():
    r = w.FakeRouter()
    yield r
    r.stop()
