"""Recordings of programs that are no scripts of repro/, each with its author's truth in truths.json: what they add is a job seen from another side.

    python -m tests.support.recordings.program_record NAME DIR '{"class": "missing_rank", "guilty_ranks": [1], "line": 17}' [OLD=NEW ...]

Packs the run directory. It is refused where the verdict is not the truth, or where it names this machine; OLD=NEW are
names of folders and what stands for them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from nsadiag.evidence.layout import RunDir

from . import golden
from .golden import GOLDEN, judged, packed

PROGRAMS = GOLDEN / "programs"
TRUTHS = PROGRAMS / "truths.json"
MOST_BYTES = 40 * 1024


def truths() -> dict[str, dict[str, Any]]:
    """By name: `class`, `outcome`, `guilty_ranks` and `line`, where the truth has one."""
    found: dict[str, dict[str, Any]] = json.loads(TRUTHS.read_text())
    return found


def archive_of(name: str) -> Path:
    return PROGRAMS / f"{name}.tar.xz"


def misses(truth: dict[str, Any], verdict: dict[str, Any]) -> list[str]:
    """What of the truth the verdict does not tell."""
    told = {**verdict, "line": (verdict["where"] or {}).get("line")}
    return [f"{key}: {told[key]}" for key, value in truth.items() if told[key] != value]


def record(name: str, directory: Path, truth: dict[str, Any], names: list[tuple[str, str]]) -> None:
    """Raises ValueError where it cannot be recorded."""
    known = golden.renamed
    golden.renamed = lambda run: [*names, *known(run)]
    try:
        archive = next(
            (each for keep in golden.KEEP_EVENTS if len(each := packed(RunDir(path=directory), keep)) <= MOST_BYTES),
            None,
        )  # fmt: skip
    finally:
        golden.renamed = known
    if archive is None:
        raise ValueError(f"{name}: too large")
    verdict, tells = judged(archive)
    if wrong := [*misses(truth, verdict), *(f"names /{each}" for each in sorted(tells))]:
        raise ValueError(f"{name}: {'; '.join(wrong)}: {verdict['summary']}")
    PROGRAMS.mkdir(exist_ok=True)
    archive_of(name).write_bytes(archive)
    every = {**(truths() if TRUTHS.exists() else {}), name: truth}
    TRUTHS.write_text(
        "{\n" + ",\n".join(f" {json.dumps(n)}: {json.dumps(t)}" for n, t in sorted(every.items())) + "\n}\n"
    )


if __name__ == "__main__":
    pairs = [tuple(each.split("=", 1)) for each in sys.argv[4:]]
    record(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]), pairs)  # type: ignore[arg-type]
