"""Two ranks of a script that hang: black boxes, stacks and a source that are made by hand."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.candidate import Candidate
from nsadiag.analysis.explain.explanation import explain
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json
from nsadiag.evidence.ring.blackbox import BlackBox, Kind, Phase

C10D = "/venv/lib/site-packages/torch/distributed/distributed_c10d.py"
FUTEX = "202 0x1 0x189 0x0"
Did = tuple[Kind, str, str]  # kind, name, the text of the line
Frames = list[dict[str, Any]]


class Job:
    """Two ranks of a script that hang; lines are named by a part of their text."""

    def __init__(self, path: Path, source: str) -> None:
        self.script = path / "train.py"
        self.script.write_text(textwrap.dedent(source))
        self.answers: dict[str, bool] = {}  # of a line that asks a loader: whether its data had run out
        self.run = RunDir(path=path / "run")
        make_private_dir(self.run.path)
        write_json(
            self.run.watch,
            {
                "looks": [
                    {
                        "t_s": 9.0,
                        "first": 1,
                        "second": 2,
                        "judgement": "still",
                        "reason": "nothing",
                        "motions": [],
                    }
                ]
            },
        )

    def at(self, text: str) -> int:
        lines = self.script.read_text().splitlines()
        (found,) = [n for n, line in enumerate(lines, start=1) if text in line]
        return found

    def stack(self, *texts: str, call: str | None = None) -> Frames:
        """Innermost first, as py-spy has it; within the innermost line a call into torch.distributed."""
        frames = [{"filename": C10D, "name": call, "line": 1}] if call else []
        return frames + [{"filename": str(self.script), "name": "f", "line": self.at(t)} for t in texts]

    def rank(self, number: int, main: Frames, *did: Did, thread: Frames | None = None) -> None:
        rank = self.run.rank(number)
        make_private_dir(rank.path)
        box = BlackBox(rank.blackbox, rank=number, world_size=2)
        names = box.names
        for kind, name, text in did:
            place = f"default_pg\t{self.script}:{self.at(text)}:f" if text else ""
            box.emit(kind, Phase.BEGIN, names(name), 0, 0, names(place))
            if text in self.answers:
                box.emit(kind, Phase.END, names(name), 0, int(self.answers[text]))
        write_json(rank.meta, {"rank": number, "world_size": 2, "pid": 1})
        threads = [{"thread_name": "MainThread", "os_thread_id": 1, "frames": main}]
        threads += [{"thread_name": "aside", "os_thread_id": 2, "frames": thread}] if thread else []
        for look in (1, 2):
            make_private_dir(rank.capture(look).path)
            write_json(rank.capture(look).py_spy, threads)
            write_json(
                rank.capture(look).proc,
                {
                    "pid": 1,
                    "t_mono_ns": look,
                    "cpu_s": 0.0,
                    "state": "S",
                    "syscall": FUTEX,
                    "machine": "x86_64",
                },
            )

    def cell(self) -> CellEvidence:
        return load_cell(self.run.path)

    def parted(self) -> Candidate | None:
        found = explain(Case(self.cell()))
        return found.best if found else None


def step(line: str) -> list[Did]:
    return [(Kind.FORWARD, "Linear", line), (Kind.BACKWARD, "", line), (Kind.STEP, "", "")]
