"""`nsadiag attach --all --nodes N`: the same command on each node at about the same time, with one --out that all of them share.

Each leaves what it saw of its own processes; the first by name puts these together and judges, the others wait for its verdict.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsadiag.agent.attaching.role_look import DOCUMENT, look
from nsadiag.agent.attaching.roles import Member
from nsadiag.commands import output
from nsadiag.commands.run import RunResult, exit_code, judge_and_report
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.layout import (
    RunDir,
    make_private_dir,
    read_json,
    this_node,
    write_json,
    write_private,
)
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.user_code import count_as_well
from nsadiag.source.archive import read_sources

PARTS = "parts"
ALL_COME_S, JUDGED_S, POLL_S = 120.0, 120.0, 0.2
APART_MS = 30_000  # of two nodes' looks, at most: who waits now may not have waited then


def attach_on_nodes(
    members: Sequence[Member], command: list[str], *, nodes: int, out: Path | None
) -> RunResult:
    """Raises UsageError before anything was written; MachineError where the others do not come, or come at other times."""
    if out is None:
        raise UsageError("--nodes without --out", "give a directory that all nodes share")
    if (out / "verdict.json").exists() or (out / PARTS / this_node()).exists():
        raise UsageError(
            f"{out} has another verdict, or this node's part", "choose another --out, on all nodes"
        )
    run = RunDir(path=make_private_dir(out))
    part = RunDir(path=make_private_dir(out / PARTS / this_node()))
    look(members, part)
    parts = _all_parts(run, nodes)
    if this_node() == parts[0].path.name:
        verdict = _judged(run, parts, command)
    else:
        verdict = _heard(run, parts[0].path.name)
    return RunResult(
        directory=run.path, verdict=verdict, exit_code=exit_code(verdict, None, passthrough=False)
    )


def _all_parts(run: RunDir, nodes: int) -> list[RunDir]:
    """Complete ones, by the names of their nodes."""
    deadline = time.monotonic() + ALL_COME_S
    while True:
        done = sorted((run.path / PARTS).glob(f"*/{DOCUMENT}"))
        if len(done) >= nodes:
            return [RunDir(path=path.parent) for path in done]
        if time.monotonic() > deadline:
            come = ", ".join(path.parent.name for path in done)
            raise MachineError(
                f"only {len(done)} of {nodes} nodes have looked within {ALL_COME_S:.0f} s: {come}",
                "start the same command on all of them at once, as srun or pdsh do",
            )
        time.sleep(POLL_S)


def _heard(run: RunDir, first: str) -> Verdict:
    deadline = time.monotonic() + JUDGED_S
    while time.monotonic() < deadline:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            return Verdict.from_json(read_json(run.verdict, {}))
        time.sleep(POLL_S)
    raise MachineError(f"{first} has not judged within {JUDGED_S:.0f} s", f"nsadiag analyze {run.path}")


def _judged(run: RunDir, parts: Sequence[RunDir], command: list[str]) -> Verdict:
    about: dict[str, Any] = {
        "kind": "attach", "name": f"attach-{len(parts)}-nodes", "command": command, "started_at": output.now(),
    }  # fmt: skip
    document = _joined(run, parts)
    output.write_run(run, **about, gaps=document["gaps"], world_size=len(document["processes"]))
    return judge_and_report(run, about | {"gaps": document["gaps"]})


def _joined(run: RunDir, parts: Sequence[RunDir]) -> dict[str, Any]:
    """One document of all nodes, with the evidence under new numbers. Raises MachineError for looks too far apart."""
    documents = {part: read_json(part.path / DOCUMENT, {}) for part in parts}
    moments = [float(document["taken_ms"]) for document in documents.values()]
    if max(moments) - min(moments) > APART_MS:
        raise MachineError(
            f"the nodes have looked {(max(moments) - min(moments)) / 1000:.0f} s apart",
            "start the same command on all of them at once, and see that their clocks agree",
        )
    on = {
        role: {part for part, d in documents.items() for p in d["processes"] if p["role"] == role and p["rank"] is None}
        for role in {p["role"] for d in documents.values() for p in d["processes"]}
    }  # fmt: skip
    processes: list[dict[str, Any]] = []
    for part, document in documents.items():
        for process in document["processes"]:
            number = len(processes)
            shutil.move(part.rank(process["number"]).path, run.rank(number).path)
            # One that is on several nodes, and has no ranks that tell them apart, is as many.
            apart = len(on[process["role"]]) > 1
            role = f"{process['role']} on {part.path.name}" if apart else process["role"]
            processes.append(process | {"number": number, "role": role})
    roots = sorted({root for document in documents.values() for root in document["user_code"]})
    count_as_well(roots)
    together = {
        "id": "roles", "processes": processes, "user_code": roots, "taken_ms": max(moments),
        "gaps": [gap for document in documents.values() for gap in document["gaps"]],
        "watched_s": max(document["watched_s"] for document in documents.values()),
    }  # fmt: skip
    write_json(run.path / DOCUMENT, together)
    _join_sources(run, parts)
    return together


def _join_sources(run: RunDir, parts: Sequence[RunDir]) -> None:
    """Files by the paths that stacks name: the same path is the same file on all nodes."""
    index: dict[str, str] = {}
    make_private_dir(run.sources)
    for part in parts:
        for file, text in read_sources(part).items():
            if file not in index:
                index[file] = f"{len(index):02d}-{Path(file).name}"
                write_private(run.sources / index[file], text)
    write_json(run.sources_index, index)
