"""A run directory as a failed run leaves it, and the job's folder beside it: what `nsadiag fix` reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nsadiag.evidence.records import Action, Progress, Times, Verdict, Where

TEXT = "import torch\nfor batch in loader:\n    loss.backward()\n"
COMMAND = ["torchrun", "--standalone", "--nproc-per-node", "2", "train.py"]


class Failed:
    """A run directory as a failed run leaves it, and the job's folder beside it."""

    def __init__(self, folder: Path) -> None:
        self.job, self.run = folder / "job", folder / "run"
        self.job.mkdir()
        self.script = self.job / "train.py"
        self.script.write_text(TEXT)
        where = Where(file=str(self.script), line=2, function="main", code="for batch in loader:")
        action = Action(do="fix code", because="it ends the same way", source="verdict.json")
        self.verdict = Verdict(
            outcome="hung", cls="uneven_inputs", confidence=0.85, summary="It hangs.", guilty_ranks=(1,), blocked_ranks=(0,),
            world_size=2, where=where, peers_at=None, progress=Progress(), evidence=(), rejected=(), gaps=(),
            fix="Let loops end together.", next=None, times=Times(), action=action,
        )  # fmt: skip
        self.about: dict[str, object] = {"kind": "run", "command": COMMAND, "host": os.uname().nodename}
        self.kept = {str(self.script): TEXT}

    def write(self) -> Path:
        rank = self.run / "ranks" / "00000"
        rank.mkdir(parents=True)
        (self.run / "sources").mkdir()
        index = {}
        for number, (path, text) in enumerate(self.kept.items()):
            index[path] = f"{number:02}.py"
            (self.run / "sources" / index[path]).write_text(text)
        for file, document in {
            "verdict.json": self.verdict.to_json(), "run.json": self.about, "sources/index.json": index,
            "ranks/00000/meta.json": {"rank": 0, "world_size": 2, "cwd": str(self.job)},
        }.items():  # fmt: skip
            (self.run / file).write_text(json.dumps(document))
        return self.run
