"""benchmarks/scale/many_nodes.py: agents that replay a hang, and node 0 as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LIMITED = """
import resource, sys
from nsadiag.cluster.join import _make_room
resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])))
_make_room(500)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks/scale/many_nodes.py"


@pytest.mark.slow
def test_a_stall_of_very_many_ranks_is_judged_by_what_few_of_them_ship() -> None:
    """More nodes than strangers are let in at a time, and more ranks than are compared one by one."""
    told = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", "--ranks", "640", "--runs", "1"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    figures = json.loads(told.stdout)["figures"]["640"]
    assert figures["looks"] == 1
    assert 7.0 < figures["stall_to_verdict_s"] < 60.0
    assert figures["mib_travelled"] < 10


def limited(hard: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(hard)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_node_0_has_room_for_a_connection_to_each_node_or_says_what_it_lacks() -> None:
    assert int(limited(1000).stdout) == 756
    assert "500 nodes need 756 open files on node 0, and its limit is 400" in limited(400).stderr
