#!/usr/bin/env python3
"""From the moment a job of very many ranks gets stuck to its verdict: 16 to 10,000 ranks, eight to a node.

    python benchmarks/scale/many_nodes.py            # 16, 128, 1,000 and 10,000 ranks, three times each
    python benchmarks/scale/many_nodes.py --quick    # 16 and 128 ranks, once

Node 0 is a process of its own, the engine as `nsadiag run --nnodes` has it, with its own patience; the other nodes' agents
are simulated, several hundred in a process: each has its own connection, speaks the real protocol over loopback, and
ships from a directory of its own the evidence of a real hang, in which one rank waits for a stale lock file and all others
for it. What a node takes to reduce its eight ranks is measured, and each agent waits for as long. `stall_to_verdict` counts
from the last progress that any rank made, and holds the 5 s of silence and the two looks 2 s apart that any job has.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nsadiag.agent.stillness.motion import stances
from nsadiag.agent.watching.state import LOOKS_APART_S
from nsadiag.analysis.scale.digests.make import write_digest
from nsadiag.analysis.scale.digests.shape import packed
from nsadiag.cluster.protocol.tokens import new_token
from nsadiag.commands.output import machine, versions
from nsadiag.evidence.layout import RunDir

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
sys.path.insert(0, str(REPO))
from tests.support.recordings.crowds import DumpSet  # noqa: E402
from tests.support.recordings.golden import archive_of, unpack  # noqa: E402

RECORDING, CLASS, GUILTY = "external_wait_stale_lock", "external_wait", [1]
COPIED = 0
RANKS_PER_NODE = 8
AGENT_PROCESSES = 2
MOVES_S = 4.0  # so long does the job move before it stalls
LOOK = (1, 2)


def measure(ranks: int) -> dict[str, Any]:
    """One stall. Raises where the verdict is not the right one."""
    folder = Path(tempfile.mkdtemp(prefix="many-nodes-"))
    try:
        return _measure(ranks, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _measure(ranks: int, folder: Path) -> dict[str, Any]:
    crowd = DumpSet(unpack(archive_of(RECORDING), folder / "recording"), COPIED, ranks)
    about = prepared(crowd, folder)
    centre = _started("many_nodes_centre.py", str(folder / "run"), str(about["nodes"]), about["token"])
    about["port"] = _line(centre)["port"]
    (folder / "about.json").write_text(json.dumps(about))
    agents = [
        _started("simulated_agents.py", str(folder / "about.json"), str(n), str(AGENT_PROCESSES))
        for n in range(AGENT_PROCESSES)
    ]
    began = time.monotonic()
    _line(centre)
    joined_s = time.monotonic() - began
    stall_at = time.time() + MOVES_S
    for agent in agents:
        _say(agent, str(stall_at))
    before = _after(stall_at, agents)
    judged_at = _line(centre)["judged_at"]
    verdict = json.loads((folder / "run" / "verdict.json").read_text())
    after = _travelled(agents)
    end = _line(centre)
    watch = json.loads((folder / "run" / "watch.json").read_text())
    for process in (centre, *agents):
        assert process.stdin
        process.stdin.close()
        process.wait(60)
    if (verdict["class"], verdict["guilty_ranks"], len(verdict["blocked_ranks"])) != (
        CLASS,
        GUILTY,
        ranks - 1,
    ):
        raise SystemExit(f"the wrong verdict at {ranks} ranks: {verdict['summary']}")
    looked_s = watch["looks"][-1]["t_s"] - watch["last_progress_s"]
    return {
        "stall_to_verdict_s": judged_at - stall_at,
        "looks": len(watch["looks"]),
        "quiet_s": looked_s,
        "after_looks_s": judged_at - stall_at - looked_s - LOOKS_APART_S,
        "stall_to_end_s": end["ended_at"] - stall_at,
        "centre_mib": end["peak_mib"],
        "centre_cpu_s": end["cpu_s"],
        "mib_travelled": (after - before) / 2**20,
        "reduce_s": about["reduce_s"],
        "joined_s": joined_s,
    }


def prepared(crowd: DumpSet, folder: Path) -> dict[str, Any]:
    """Each node's directory, and what its agent says of it; how long a real node takes to make its digest."""
    nodes = 1 + -(-crowd.world_size // RANKS_PER_NODE)
    scratch = RunDir(path=folder / "scratch")
    digests = list(crowd.digests(scratch, RANKS_PER_NODE))
    found = stances([scratch.rank(rank) for rank in crowd.few], LOOK, {})
    ends = crowd.ends(json.loads((crowd.run.ends).read_text()))
    for node, digest in enumerate(digests, 1):
        name = f"node{node:05d}"
        own = RunDir(path=folder / "agents" / str(node))
        own.node(name).mkdir(parents=True)
        shutil.copytree(crowd.run.sources, own.sources, copy_function=os.link)
        own.digest(name, digest.look).write_bytes(packed(dataclasses.replace(digest, host=name)))
        (own.node(name) / "ends.json").write_text(json.dumps({str(r): ends[str(r)] for r in digest.ranks}))
        (own.node(name) / "watch.json").write_text(json.dumps({"launcher_exit_code": 1, "left_alive": []}))
    return {
        "recording": str(crowd.run.path),
        "agents": str(folder / "agents"),
        "token": new_token(),
        "copied": COPIED,
        "ranks": crowd.world_size,
        "nodes": nodes,
        "ranks_per_node": RANKS_PER_NODE,
        "apart_s": LOOKS_APART_S,
        "stances": [dataclasses.asdict(stance) for stance in found],
        "reduce_s": _reduce_s(crowd, folder / "one"),
    }


def _reduce_s(crowd: DumpSet, folder: Path) -> float:
    """The digest of a whole node, as its own agent makes it."""
    run = RunDir(path=folder)
    crowd.write_frame(run)
    own = range(min(RANKS_PER_NODE, crowd.world_size))
    for rank in own:
        crowd.write_rank(run, rank)
    began = time.monotonic()
    write_digest(run, host="node", ranks=own, look=2)
    return time.monotonic() - began


def _started(script: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(REPO), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True,
    )  # fmt: skip


def _line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout
    text = process.stdout.readline()
    if not text:
        raise SystemExit(f"a process ended early, with {process.wait(10)}")
    found: dict[str, Any] = json.loads(text)
    return found


def _say(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdin
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


def _travelled(agents: list[subprocess.Popen[str]]) -> int:
    for agent in agents:
        _say(agent, "?")
    return sum(sum(_line(agent).values()) for agent in agents)


def _after(moment: float, agents: list[subprocess.Popen[str]]) -> int:
    time.sleep(max(moment - time.time(), 0.0))
    return _travelled(agents)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--quick", action="store_true", help="16 and 128 ranks, once")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 128, 1_000, 10_000])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    figures = {}
    for ranks in options.ranks[:2] if options.quick else options.ranks:
        rows = [measure(ranks) for _ in range(1 if options.quick else options.runs)]
        for row in rows:
            print(f"{ranks:,} ranks: {_shown(row)}; load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        figures[str(ranks)] = {
            **{name: round(statistics.median(row[name] for row in rows), 2) for name in rows[0]},
            "stall_to_verdict_s_max": round(max(row["stall_to_verdict_s"] for row in rows), 2),
            "runs": len(rows),
        }
    if options.json:
        print(json.dumps({"machine": {**machine(), "versions": versions()}, "figures": figures}, indent=1))
        return
    print(
        "| ranks | stall to verdict, s | of it silence and looks | centre MiB | centre CPU s | MiB travelled |"
    )
    print("|---|---|---|---|---|---|")
    for ranks, row in figures.items():
        looks = row["quiet_s"] + LOOKS_APART_S
        cells = (f"{int(ranks):,}", row["stall_to_verdict_s"], round(looks, 2), row["centre_mib"], row["centre_cpu_s"], row["mib_travelled"])  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |")


def _shown(row: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in row.items())


if __name__ == "__main__":
    main()
