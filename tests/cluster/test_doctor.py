"""`hpccoll doctor` between hosts: a link that is much slower than the others is found and named."""

from __future__ import annotations

import json
import sys

import pytest

from tests.support.virtual_hosts import VirtualHosts

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.mark.parametrize(("hosts", "slow"), [(2, None), (2, 1), (3, 0), (4, 2)])
def test_a_link_at_a_tenth_of_its_rate(hosts: int, slow: int | None) -> None:
    with VirtualHosts(hosts) as rack:
        if slow is not None:
            rack.limit(f"node{slow}", "100mbit")
        done = rack.mpiexec([sys.executable, "-m", "hpccoll.cli", "doctor", "--json", "-"], 1)
    document = json.loads(done.stdout)
    found = {one["check"]: one["findings"] for one in document["checks"] if one["word"] == "wrong"}
    assert done.returncode == document["status"] == int(slow is not None)
    if slow is None:
        assert found == {}
        return
    ((check, (finding,)),) = found.items()
    assert check == "links"
    assert finding["text"].startswith(f"the link of node{slow} is slow: it sends at 1")
