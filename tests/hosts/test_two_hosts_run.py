"""`nsadiag run --nnodes 2`: one job on two hosts, and one verdict, whatever befalls a host or the network between them."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from support.cluster.hosts import DISK, Hosts, send
from support.jobs import BIN, GIVE_UP_S, wait_until

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.ring.blackbox import Kind, Phase

TOKEN = "0123456789abcdef0123456789abcdef"
SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist

def upload():
    while not os.path.exists("go-on"):
        time.sleep(0.5)

dist.init_process_group("gloo")
rank, what = dist.get_rank(), sys.argv[1]
for step in range(400 if what == "long" else 5):
    if what == "hang" and rank == 3 and step == 3:
        upload()
    dist.all_reduce(torch.ones(4))
    if what == "long":
        open(f"step-{rank}", "w").write(str(step))
        time.sleep(0.2)
dist.destroy_process_group()
"""
# Namespaces shift every clock but the wall's; this shifts it for all that is Python.
AHEAD_S = 5
WALL_CLOCK = f"""
import time
real, real_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: real() + {AHEAD_S}, lambda: real_ns() + {AHEAD_S} * 10**9
"""


class Run:
    """One `nsadiag run` on both hosts; the wall clock of the second may be ahead."""

    def __init__(
        self, hosts: Hosts, what: str, *, cwd: Path, out: Path, port: int | None = None, ahead: bool = False
    ) -> None:
        self.hosts, self.cwd, self.out = hosts, cwd, out
        for host in hosts:
            host.path(cwd / "train.py").write_text(SCRIPT)
        clock = cwd / "clock"
        if ahead:
            hosts[1].path(clock).mkdir()
            hosts[1].path(clock / "sitecustomize.py").write_text(WALL_CLOCK)
        ours = ({}, {"PYTHONPATH": str(clock)} if ahead else {})
        more = ("--master-port", str(port)) if port else ()
        self.started = [
            host.start(
                BIN / "nsadiag", "run", "--nnodes", "2", "--node-rank", str(rank), "--master-addr", "node0", *more,
                "--out", out, "--", "torchrun", "--nproc-per-node", "2", "train.py", what,
                cwd=cwd, env={"NSADIAG_RUN_TOKEN": TOKEN, **ours[rank]},
            )
            for rank, host in enumerate(hosts)
        ]  # fmt: skip
        self.said = ["", ""]

    def wait_for_steps(self) -> None:
        """All ranks have made some."""
        files = [self.hosts[rank // 2].path(self.cwd / f"step-{rank}") for rank in range(4)]
        wait_until(lambda: all(f.exists() and f.read_text() not in ("", "0") for f in files), "steps")

    def pid_of(self, rank: int) -> int:
        """Of a rank, on its host."""
        meta = self.hosts[rank // 2].path(self.out / f"ranks/{rank:05d}/meta.json")
        return int(json.loads(meta.read_text())["pid"])

    def finish(self, seconds: float = 120) -> tuple[list[int | None], dict[str, Any]]:
        """The commands' exit codes, and node 0's verdict."""
        for number, started in enumerate(self.started):
            stdout, stderr = started.communicate(timeout=seconds)
            self.said[number] = f"== {self.hosts[number].name}: {started.returncode}\n{stdout}{stderr}"
        print(*self.said, sep="\n")
        assert self.hosts.left() == {}, "no orphan on any host"
        path = self.hosts[0].path(self.out / "verdict.json")
        return [s.returncode for s in self.started], json.loads(path.read_text()) if path.exists() else {}


@pytest.mark.slow
@pytest.mark.parametrize("shared", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_rank_that_holds_up_the_others_is_named_with_its_host(
    hosts: Hosts, tmp_path: Path, shared: bool
) -> None:
    cwd = tmp_path if shared else DISK
    run = Run(hosts, "hang", cwd=cwd, out=cwd / "out", ahead=True)
    codes, verdict = run.finish()
    assert codes == [1, 1]
    assert (verdict["class"], verdict["guilty_ranks"]) == ("external_wait", [3])
    assert verdict["blocked_ranks"] == [0, 1, 2] and verdict["gaps"] == []
    assert verdict["where"]["host"] == "node1" and verdict["where"]["function"] == "upload"
    # The hosts' monotonic clocks are a day apart, and their wall clocks five seconds.
    times = verdict["times"]
    assert 0 < times["onset_s"] < times["detected_s"] < times["verdict_s"] < 90, times
    metas = [json.loads(p.read_text()) for p in sorted(hosts[0].path(run.out).glob("ranks/*/meta.json"))]
    assert [meta["host"] for meta in metas] == ["node0", "node0", "node1", "node1"]
    clock = json.loads((hosts[0].path(run.out) / "nodes/node1/clock.json").read_text())
    events = Case(load_cell(hosts[0].path(run.out))).events
    calls = events[(events.kind == Kind.COLLECTIVE) & (events.phase == Phase.END)]
    ends = calls.groupby("rank").t_s.min()
    assert ends.max() - ends.min() < 1.0, (
        f"the first collective ends everywhere at once, not {ends.to_dict()}"
    )
    assert abs(abs(clock["wall_offset_ns"]) / 1e9 - AHEAD_S) < 1.0, clock


def test_a_host_that_drops_off_the_network_is_named_and_the_other_sides_evidence_is_whole(
    hosts: Hosts, tmp_path: Path
) -> None:
    run = Run(hosts, "long", cwd=DISK, out=DISK / "out")
    run.wait_for_steps()
    hosts[1].unplug()
    codes, verdict = run.finish()
    assert codes == [1, 3] and "node 0 is lost" in run.said[1]
    assert (verdict["outcome"], verdict["class"], verdict["guilty_ranks"]) == (
        "hung",
        "network_stall",
        [2, 3],
    )
    assert "Host node1 stopped responding" in verdict["summary"] and verdict["blocked_ranks"] == [0, 1]
    assert verdict["where"]["host"] == "node1" and verdict["where"]["collective"]["op"] == "all_reduce"
    assert verdict["peers_at"]["line"] == 15
    here, there = hosts[0].path(run.out), hosts[1].path(run.out)
    assert all((here / f"ranks/{rank:05d}/captures/02/py_spy.json").exists() for rank in (0, 1))
    assert any("node1: " in gap and "in /mnt/out there" in gap for gap in verdict["gaps"])
    assert (there / "ranks/00003/blackbox.bin").exists() and (there / "nodes/node1/ends.json").exists()


@pytest.mark.slow
def test_a_rank_killed_on_the_second_host_is_named_with_it(hosts: Hosts, tmp_path: Path) -> None:
    run = Run(hosts, "long", cwd=tmp_path, out=tmp_path / "out")
    run.wait_for_steps()
    hosts[1].run("kill", "-KILL", str(run.pid_of(3)))
    codes, verdict = run.finish()
    assert codes == [1, 1]
    assert (verdict["class"], verdict["guilty_ranks"]) == ("rank_killed", [3])
    assert "node1" in verdict["summary"]


@pytest.mark.slow
def test_the_death_of_the_second_hosts_agent_ends_the_run_and_is_told(hosts: Hosts, tmp_path: Path) -> None:
    run = Run(hosts, "long", cwd=tmp_path, out=tmp_path / "out")
    run.wait_for_steps()
    send(run.started[1], signal.SIGKILL)
    codes, verdict = run.finish()
    assert codes == [1, -signal.SIGKILL]
    # Its ranks go with it; from node 0 that looks like a host that was lost, and what ended them is left open.
    assert "Host node1 stopped responding" in verdict["summary"] and verdict["guilty_ranks"] == [2, 3]
    assert any("what ended the ranks on node1 is not known" in gap for gap in verdict["gaps"])


@pytest.mark.slow
def test_the_death_of_node_0s_agent_ends_the_run_everywhere(hosts: Hosts, tmp_path: Path) -> None:
    run = Run(hosts, "long", cwd=tmp_path, out=tmp_path / "out")
    run.wait_for_steps()
    send(run.started[0], signal.SIGKILL)
    codes, _ = run.finish()
    assert codes == [-signal.SIGKILL, 3] and "node 0 is lost: its agent died" in run.said[1]


@pytest.mark.slow
def test_a_full_disk_on_one_host_is_a_gap_and_no_cause(hosts: Hosts, tmp_path: Path) -> None:
    run = Run(hosts, "hang", cwd=DISK, out=DISK / "out")
    wait_until(hosts[1].path(run.out / "ranks/00003/blackbox.bin").exists, "its black box")
    hosts[1].fill_disk()
    codes, verdict = run.finish()
    assert codes == [1, 1]
    assert (verdict["outcome"], verdict["class"], verdict["guilty_ranks"]) == ("hung", "unknown", [])
    assert any("node1: " in gap and "No space left" in gap for gap in verdict["gaps"])


@pytest.mark.slow
def test_two_runs_at_once_on_the_same_hosts_do_not_meet(hosts: Hosts, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    runs = [
        Run(hosts, what, cwd=tmp_path / name, out=tmp_path / name / "out", port=port)
        for what, name, port in (("ok", "a", 29460), ("hang", "b", 29470))
    ]
    for run in runs:
        for started in run.started:
            started.wait(180)
    verdicts = [run.finish()[1] for run in runs]
    assert [(v["class"], v["guilty_ranks"]) for v in verdicts] == [("healthy", []), ("external_wait", [3])]


def test_nodes_that_do_not_belong_together_are_told_so(hosts: Hosts, tmp_path: Path) -> None:
    line = (BIN / "nsadiag", "run", "--wait", "20", "--out", "out", "--master-addr", "node0")
    run, env = ("--", "torchrun", "train.py"), {"NSADIAG_RUN_TOKEN": TOKEN}
    (tmp_path / "train.py").touch()
    first = hosts[0].start(*line, "--nnodes", "2", "--node-rank", "0", *run, cwd=tmp_path, env=env)
    other = hosts[1].run(*line, "--nnodes", "3", "--node-rank", "1", *run, cwd=tmp_path, env=env, check=False)
    said = first.communicate(timeout=GIVE_UP_S)[1]
    assert (first.returncode, other.returncode) == (2, 2)
    for text in (said, other.stderr):
        assert "node 1 (node1) was started with --nnodes 3, and node 0 (node0) with --nnodes 2" in text
    assert not (tmp_path / "out").exists()


def test_a_wrong_master_address_is_one_clear_line(hosts: Hosts, tmp_path: Path) -> None:
    """A name that nobody has, and an address where nobody is."""
    (tmp_path / "train.py").touch()
    for address, code in (("node7", 2), ("10.77.0.99", 3)):
        line = ("--nnodes", "2", "--node-rank", "1", "--master-addr", address, "--wait", "3", "--out", "out")
        done = hosts[1].run(
            BIN / "nsadiag", "run", *line, "--", "torchrun", "train.py",
            cwd=tmp_path, env={"NSADIAG_RUN_TOKEN": TOKEN}, check=False,
        )  # fmt: skip
        assert done.returncode == code and address in done.stderr, done.stderr
        assert (
            done.stderr.count("error: ") == 1 and "hint: " in done.stderr and "Traceback" not in done.stderr
        )
