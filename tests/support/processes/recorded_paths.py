"""Paths that real processes record, without torch: `call(name)` stands for a collective of all ranks, and with `peer` for a transfer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nsadiag.analysis.paths.walk import Walk
from nsadiag.evidence.documents.types import read_rows
from nsadiag.evidence.layout import RankDir, RunDir
from nsadiag.evidence.rehearsal.paths import Named, Walked, read_path

RANK = """
import builtins, itertools, os, runpy, sys
from pathlib import Path
from nsadiag.evidence.layout import RunDir, make_private_dir
from nsadiag.worker.recorder import Recorder
from nsadiag.worker.rehearsal.paths import recorder

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
directory = RunDir(path=Path(sys.argv[1])).rank(rank)
make_private_dir(directory.path.parent.parent)
make_private_dir(directory.path.parent)
make_private_dir(directory.path)
members, numbers = ",".join(map(str, range(size))), itertools.count(1)
about = lambda peer: "" if peer is None else f",,{peer},0"
builtins.call = lambda name, *what, peer=None: recorder.announced(
    next(numbers), "\\t".join((name, "0", members, about(peer), *map(str, what)))
)
exec(os.environ.get("BEFORE", ""))
recorder.start(Recorder(directory, rank, size))
runpy.run_path(sys.argv[2], run_name="__main__")
"""


def record(folder: Path, source: str, *, rank: int = 0, size: int = 2, before: str = "") -> RankDir:
    """One rank's directory, after it ran the script; `before` runs ahead of the recorder."""
    script = folder / "train.py"
    script.write_text(source)
    environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "BEFORE": before}
    subprocess.run(
        [sys.executable, "-c", RANK, str(folder / "run"), str(script)],
        env=environment,
        check=False,
        timeout=300,
    )
    return RunDir(path=folder / "run").rank(rank)


def walked(directory: RankDir) -> Walked:
    found = read_path(directory.path_words.read_bytes(), read_rows(Named, directory.path_names))
    assert found is not None
    return found


def walks(folder: Path, source: str, size: int = 2) -> list[Walk]:
    """The paths of all ranks."""
    return [Walk(rank, walked(record(folder, source, rank=rank, size=size))) for rank in range(size)]
