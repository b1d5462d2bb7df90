"""Common to the benchmarks of this folder: the environment of a run, shares, rows kept in a file, and the answer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nsadiag.commands.output import machine, versions

Row = dict[str, Any]


def environment(**more: str) -> dict[str, str]:
    """Of a job: this Python's commands come first."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, **more}


def command_of(known: Row) -> list[str]:
    """The launcher line of a program's truth, which may begin with torchrun's options."""
    launch = [str(word) for word in known["launch"]]
    return ["torchrun", *launch] if launch[0].startswith("-") else launch


def can_run(known: Row) -> bool:
    """Whether what the program needs is here: `gpu`, or a package by its name."""
    needs = known.get("needs") or ()
    return all(bool(machine()["gpus"]) if need == "gpu" else find_spec(need) for need in needs)


def named(told: object) -> list[str]:
    """One line of a truth, or several."""
    return [told] if isinstance(told, str) else [str(each) for each in told or ()]  # type: ignore[attr-defined]


def percent(answers: Iterable[bool | None]) -> float | None:
    """Of the runs to which the question applies."""
    known = [answer for answer in answers if answer is not None]
    return round(100 * sum(known) / len(known), 1) if known else None


def is_right(row: Row) -> bool:
    return all(row[key] is not False for key in ("class_right", "rank_right", "line_right"))


def earlier(path: Path | None) -> list[Row]:
    """Rows of earlier runs."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def collected(path: Path | None, measured: Iterable[Row]) -> list[Row]:
    """The earlier rows, and those that come now: each is added to the file at once."""
    rows = earlier(path)
    for row in measured:
        rows.append(row)
        if path:
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
    return rows


def answer(figures: Row, lines: Iterable[str], *, as_json: bool) -> None:
    """Prints one document, or the lines of a table."""
    if as_json:
        print(json.dumps({"machine": {**machine(), "versions": versions()}, "figures": figures}, indent=1))
    else:
        print(*lines, sep="\n")
