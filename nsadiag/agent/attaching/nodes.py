"""A job that was not started by us and has ranks on several nodes: what each node sees, and what all of it says together."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from nsadiag.agent import processes
from nsadiag.agent.attaching.attach import socket_dir_of, states_of
from nsadiag.agent.attaching.attached_watch import APART_S, AttachedJob, AttachedWatch
from nsadiag.agent.attaching.finding import AttachedRank, as_rank, is_python
from nsadiag.agent.captures.capturing import capture_slow
from nsadiag.agent.stillness.judgement import Judgement, judge
from nsadiag.agent.stillness.motion import Motion, Stance, joined
from nsadiag.evidence.layout import DIRECTORY_MODE, RunDir, make_private_dir, read_json, this_node, write_json

LOOK = "look.json"  # in a node's folder


# -- on each node --------------------------------------------------------------------------------


def ranks_of_job(variable: str, value: str) -> list[AttachedRank]:
    """Ranks on this machine whose environment has the variable, as a scheduler sets it for all that a job starts."""
    found: dict[int, list[AttachedRank]] = {}
    for pid in psutil.pids():
        if processes.environment(pid, (variable,)).get(variable) == value and is_python(pid):
            process = processes.identify(pid)
            rank = as_rank(process) if process else None
            if rank:
                found.setdefault(rank.rank, []).append(rank)
    return [topmost for same in found.values() for topmost in _topmost(same)]


def _topmost(same: list[AttachedRank]) -> list[AttachedRank]:
    """Loaders' workers inherit RANK: of a family the first is the rank."""
    pids = {rank.process.pid for rank in same}
    return [rank for rank in same if processes.parent(rank.process.pid) not in pids]


class NodeWatch(AttachedWatch):
    """Looks at the ranks of this machine, and leaves the judgement to who has heard of all."""

    def look_here(self, ranks: Iterable[AttachedRank]) -> None:
        """Two captures of each, and look.json, ends.json and watch.json in the node's folder."""
        self._home = make_private_dir(self.directory.node(this_node()))
        reading = {"mono_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
        try:
            pair = self._pair(APART_S)
            self.write()
        finally:
            self.close()
        document = nothing_here() | {
            "clock": reading,
            "first": pair.first,
            "second": pair.second,
            "world_sizes": {rank.rank: rank.world_size for rank in ranks},
            "stances": [dataclasses.asdict(stance) for stance in pair.stances],
        }
        write_json(self._home / LOOK, document)

    def look_closer(self, number: int) -> None:
        """Takes the captures that cost seconds a rank, under that number."""
        try:
            capture_slow([self.captures.target(rank, number) for rank in self._alive()])
        finally:
            self.close()


def nothing_here() -> dict[str, Any]:
    """look.json of a node that has no rank of the job."""
    return {"node": this_node(), "first": 1, "second": 2, "world_sizes": {}, "stances": []}


def claim(ranks: Iterable[AttachedRank], run: RunDir) -> str | None:
    """Takes their directories; a sentence where somebody has one already: the nodes run more than one job."""
    make_private_dir(run.path / "ranks")
    for rank in ranks:
        try:
            run.rank(rank.rank).path.mkdir(mode=DIRECTORY_MODE)
        except FileExistsError:
            return f"there is more than one rank {rank.rank}, on {this_node()} or on another node"
    return None


def watch_of(ranks: list[AttachedRank], run: RunDir) -> NodeWatch:
    """The ranks' meta.json is written with it."""
    job = AttachedJob(socket_dir=socket_dir_of(rank.process for rank in ranks))
    return NodeWatch(job, run, states_of(ranks, run))


# -- where it was asked for ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JointLook:
    """The observations of all nodes together."""

    judgement: Judgement
    reason: str
    motions: list[Motion]
    number: int  # of the second capture
    gaps: list[str]


def join_looks(run: RunDir, expected: Iterable[str]) -> JointLook:
    """Joins the nodes that answered; those of `expected` that did not are gaps, and so are ranks that are nowhere."""
    looks = {node: look for node in expected if isinstance(look := read_json(run.node(node) / LOOK), dict)}
    found = [_stance(each) for look in looks.values() for each in look["stances"]]
    sizes = [int(size) for look in looks.values() for size in look["world_sizes"].values()]
    here = {int(rank) for look in looks.values() for rank in look["world_sizes"]}
    world = set(range(max(sizes, default=0))) | here
    moved = joined(found, world)
    judgement, reason = judge(moved)
    gaps = [f"{node}: no snapshot of its ranks could be taken" for node in expected if node not in looks]
    gaps += [f"rank {rank} was found on no node" for rank in sorted(world - here)]
    if judgement == "still" and any(node not in looks for node in expected):
        judgement, reason = "unobserved", f"{gaps[0]}: what its ranks do is not known"
    number = max((int(look["second"]) for look in looks.values()), default=2)
    return JointLook(judgement=judgement, reason=reason, motions=moved, number=number, gaps=gaps)


def _stance(document: Mapping[str, Any]) -> Stance:
    motion = document["motion"]
    return Stance(**{**document, "motion": Motion(**motion) if motion else None})


def write_joint(run: RunDir, look: JointLook, nodes: Iterable[str], started_ns: int) -> None:
    """watch.json and ends.json of all ranks, as one watch would have left them."""
    ends: dict[str, Any] = {}
    for node in nodes:
        ends |= read_json(run.node(node) / run.ends.name, {})
    write_json(run.ends, dict(sorted(ends.items(), key=lambda item: int(item[0]))))
    now_s = (time.monotonic_ns() - started_ns) / 1e9
    document = {
        "started_mono_ns": started_ns,
        "attached": True,
        "launcher_exit_code": None,
        "ended_s": now_s,
        "last_progress_s": None,
        "stopped": "hang" if look.judgement == "still" else None,
        "ending_s": None,
        "left_alive": [],
        "looks": [
            {
                "t_s": 0.0,
                "first": look.number - 1,
                "second": look.number,
                "judgement": look.judgement,
                "reason": look.reason,
                "motions": [dataclasses.asdict(motion) for motion in look.motions],
            }
        ],
    }
    write_json(run.watch, document)
