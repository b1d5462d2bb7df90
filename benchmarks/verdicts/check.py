#!/usr/bin/env python3
"""`nsadiag check` on the scripts of repro/, beside what `run` promises: `python benchmarks/verdicts/check.py [-k NAME] [--out FILE]`.

A script is told where its ranks' calls differ or a rank raises; a healthy one is accused where it is told. The cause and the
place are counted apart. `--programs PATH`: others, in a folder or an archive of one (rehearsed/), each NAME.json with `launch`, `kind`,
`class`, `guilty_ranks`, `needs` (packages), and the lines `stands_at` and `because_of` as FILE:LINE. Endless loops are counted apart.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from programs import is_program, unpacked  # noqa: E402
from shared import command_of, named  # noqa: E402

from tests.support.promises import Promise, promises  # noqa: E402

SECONDS = 60
COUNTED = ("class_right", "ranks_right", "place_right", "cause_right", "cause_in_chain")
# torchrun is the one of this Python; modules are compiled once, as an installation has them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="only scripts with this in their name")
    parser.add_argument("--out", type=Path, help="append each result to this file as a line of JSON")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument(
        "--programs", type=Path, help="programs with their truth, in place of repro/: a folder or an archive"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="so many at a time; the seconds are those of a busy machine then"
    )
    parser.add_argument(
        "--kinds",
        default="",
        help="only programs of these kinds, as differs,raised; of repro/, of these classes",
    )
    given = parser.parse_args()
    rows = []
    kinds = given.kinds.split(",") if given.kinds else []
    for row in measured(given.programs, given.k, kinds, given.seconds, given.jobs):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if given.out:
            with given.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print(json.dumps(summary(rows), indent=1))


def measured(
    programs: Path | None, part: str, kinds: list[str], seconds: int, jobs: int
) -> Iterator[dict[str, object]]:
    """A row for each program with this part in its name."""
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(
            lambda measure: measure(), list(_measures(programs, part, kinds, seconds, Path(scratch)))
        )


def _measures(
    programs: Path | None, part: str, kinds: list[str], seconds: int, scratch: Path
) -> Iterator[Callable[[], dict[str, object]]]:
    if programs is None:
        for promise in promises():
            if part in promise.name and not promise.needs and (not kinds or promise.classes[0] in kinds):
                yield functools.partial(checked, promise, seconds)
        return
    for truth in sorted(unpacked(programs, scratch).resolve().rglob("*.json")):
        if part in truth.stem and is_program(json.loads(truth.read_text()), kinds):
            yield functools.partial(compared, truth, seconds)


def compared(truth: Path, seconds: int) -> dict[str, object]:
    """One program under check, beside the lines that its truth names."""
    known = json.loads(truth.read_text())
    rehearsal, verdict, took, code, said = under_check(command_of(known), truth.parent, seconds)
    because, stands = verdict.get("because") or {}, verdict.get("stands_at") or verdict.get("where") or {}
    lines = [
        _line(because, truth.parent),
        *(_line(link["at"], truth.parent) for link in because.get("chain", ())),
    ]
    return {
        "name": truth.stem,
        "answer": rehearsal.get("answer", f"failed: {said}"),
        "class": verdict.get("class"),
        "expected": known["kind"],
        "how": because.get("how"),
        "origin": because.get("origin"),
        "has_class": bool(known.get("classes") or known.get("class")),
        "class_right": verdict.get("class")
        in (named(known.get("classes") or known.get("class")) or [verdict.get("class")]),
        "cause_right": lines[0] in named(known.get("because_of")),
        "cause_in_chain": any(line in named(known.get("because_of")) for line in lines),
        "place_right": _line(stands, truth.parent) in named(known.get("stands_at")),
        "ranks_right": not known.get("guilty_ranks") or verdict.get("guilty_ranks") == known["guilty_ranks"],
        "exit": code,
        "seconds": took,
    }


def _line(place: dict[str, Any], folder: Path) -> str:
    file = Path(str(place.get("file", "")))
    return f"{file.relative_to(folder) if file.is_relative_to(folder) else file}:{place.get('line')}"


def checked(promise: Promise, seconds: int) -> dict[str, object]:
    """One script under check."""
    rehearsal, verdict, took, code, said = under_check(promise.command, None, seconds)
    where = (verdict.get("where") or {}).get("code") or ""
    because = verdict.get("because") or {}
    links = [
        because.get("code") or "",
        *((link["at"].get("code") or "") for link in because.get("chain", ())),
    ]
    return {
        "name": promise.name,
        "answer": rehearsal.get("answer", f"failed: {said}"),
        "matched": rehearsal.get("matched"),
        "class": verdict.get("class"),
        "has_class": True,
        "class_right": verdict.get("class") in promise.classes,
        "ranks_right": tuple(verdict.get("guilty_ranks", ())) == promise.guilty_ranks,
        "place_right": not promise.codes or any(part in where for part in promise.codes),
        "cause_right": not promise.codes or any(part in links[0] for part in promise.codes),
        "cause_in_chain": not promise.codes or any(part in link for part in promise.codes for link in links),
        "how": because.get("how"),
        "origin": because.get("origin"),
        "expected": promise.classes[0],
        "exit": code,
        "seconds": took,
    }


def under_check(
    launch: Sequence[str], folder: Path | None, seconds: int
) -> tuple[dict[str, Any], dict[str, Any], float, int, str]:
    """The rehearsal, its verdict, the seconds that it took, the exit code, and the end of stderr."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "run"
        command = [sys.executable, "-m", "nsadiag", "check", "--out", str(out), "--seconds", str(seconds)]
        began = time.monotonic()
        done = subprocess.run(
            [*command, "--", *launch],
            capture_output=True,
            text=True,
            cwd=folder or scratch,
            check=False,
            env=ENVIRONMENT,
        )
        took = round(time.monotonic() - began, 1)
        return (
            _read(out / "rehearsal.json"),
            _read(out / "verdict.json"),
            took,
            done.returncode,
            done.stderr[-300:],
        )


def _read(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(file.read_text()))
    except (OSError, ValueError):
        return {}


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """Figures by kind of script."""
    healthy = [row for row in rows if row["expected"] == "healthy"]
    endless = [row for row in rows if row["expected"] == "endless"]
    others = [row for row in rows if row["expected"] not in ("healthy", "endless")]
    told = [row for row in others if row["answer"] in ("differs", "raised")]
    looping = [row for row in endless if row["class"] == "livelock_user_code"]
    return {
        "healthy": len(healthy),
        "healthy_accused": [
            row["name"]
            for row in healthy
            if row["answer"] in ("differs", "raised") or row["class"] == "livelock_user_code"
        ],
        "endless": len(endless),
        "endless_named": len(looping),
        **{f"endless_{key}": sum(bool(row.get(key)) for row in looping) for key in COUNTED[1:]},
        "others": len(others),
        "told": len(told),
        "median_s": statistics.median(float(str(row["seconds"])) for row in others) if others else 0.0,
        "with_class": sum(bool(row["has_class"]) for row in told),
        "class_right_of_these": sum(bool(row["has_class"] and row["class_right"]) for row in told),
        **{key: sum(bool(row.get(key)) for row in told) for key in COUNTED},
    }


if __name__ == "__main__":
    main()
