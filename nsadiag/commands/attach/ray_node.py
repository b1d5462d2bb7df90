"""`python -m nsadiag.commands.attach.ray_node DIR < QUESTION`: one node's part of `nsadiag attach ray:JOB`."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import re
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nsadiag.agent.attaching.object_waits import Layout, object_waits
from nsadiag.agent.attaching.recorder_pipe import dump_by_pipe
from nsadiag.agent.captures.capturing import QUICK, capture_rank
from nsadiag.agent.captures.target import CaptureError, Target
from nsadiag.evidence.documents.files import read_tail
from nsadiag.evidence.layout import RunDir, make_private_dir, this_node, write_json
from nsadiag.evidence.user_code import count_as_well, counted

APART_S = 2.0
LOOKED = "ray_node.json"  # in a node's folder
WORKER = re.compile(r"\(ip=([^,\s]+), pid=(\d+)\) world_rank=(\d+)")
MOST_LOG = 1 << 20  # bytes of a controller's log


def main(directory: str) -> int:
    """Two captures of each process of the question, into their folders."""
    question = json.loads(sys.stdin.read())
    run, layout = RunDir(path=Path(directory)), Layout(offset=int(question["offset"]))
    roots = tuple(question["user_code"])
    count_as_well(roots)
    for process in question["processes"]:
        folder = make_private_dir(run.rank(process["number"]).path)
        write_json(
            folder / "meta.json", {"rank": process["number"], "pid": process["pid"], "host": this_node()}
        )
    began_ms = time.time() * 1000
    for number in (1, 2):
        if number > 1:
            time.sleep(APART_S)
        capture = functools.partial(_capture, run, number, layout, roots)
        with ThreadPoolExecutor(max_workers=8) as pool:
            list(pool.map(capture, question["processes"]))
    told = {"began_ms": began_ms, "train_ranks": train_ranks(Path(question["logs"]))}
    write_json(make_private_dir(run.node(this_node())) / LOOKED, told)
    return 0


def train_ranks(logs: Path) -> dict[str, int]:
    """Ranks of Ray Train's workers by `address pid`, as its controllers on this node wrote them into their logs."""
    found: dict[str, int] = {}
    for path in sorted(logs.glob("train/*controller*.log"), key=lambda p: p.stat().st_mtime):
        for address, pid, rank in WORKER.findall(read_tail(path, MOST_LOG).decode(errors="replace")):
            found[f"{address} {pid}"] = int(rank)
    return found


def _capture(
    run: RunDir, number: int, layout: Layout, roots: tuple[str, ...], process: Mapping[str, int]
) -> None:
    directory = run.rank(process["number"]).capture(number)
    capture_rank(Target(pid=process["pid"], directory=directory, socket=None), QUICK)
    with contextlib.suppress(CaptureError, OSError):
        dump_by_pipe(process["pid"], process["number"], directory)
    with counted(roots):
        write_json(directory.path / "waits.json", dataclasses.asdict(object_waits(process["pid"], layout)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
