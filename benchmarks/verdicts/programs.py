#!/usr/bin/env python3
"""`nsadiag run` on programs that were written by others, truth first: `python benchmarks/verdicts/programs.py FOLDER [--jobs N] [-k NAME]`.

FOLDER, or an archive of one: each program with NAME.json, of which `launch`, `kind`, `class` or `classes`, `guilty_ranks`, and the
lines `stands_at`, `may_stand_at` and `because_of` as FILE:LINE are read; `needs` names packages, or `gpu`. Where there are GPUs, two ranks at most run a program, each on its own.

A healthy program is accused where its verdict is anything but healthy, and a false alarm where it is called hung. The place counts
where the guilty rank stands or the cause lies; the cause alone is counted apart, and so are the two lines of a verdict, *stands at* and
*because of*. `--confirm` rehearses each failed run (`nsadiag confirm`), and counts *because of* once more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from shared import Row, answer, can_run, collected, command_of, environment, named, percent

CALM = ("healthy", "slow")


def unpacked(given: Path, scratch: Path) -> Path:
    """The folder with the programs: the given one, or what the archive holds."""
    if given.is_dir():
        return given
    with tarfile.open(given) as archive:
        archive.extractall(scratch, filter="data")
    return scratch


def measured(
    truths: Iterable[Path], jobs: int, seconds: int, keep: Path | None, *, confirm: bool, probes: str
) -> Iterator[Row]:
    with ThreadPoolExecutor(jobs) as pool:
        todo = [pool.submit(one, truth, seconds, keep, confirm=confirm, probes=probes) for truth in truths]
        try:
            for done in as_completed(todo):
                row = done.result()
                print(
                    f"{'right' if is_right(row) else 'WRONG'} {row['name']}: {row['said']}",
                    file=sys.stderr,
                    flush=True,
                )
                yield row
        finally:
            pool.shutdown(cancel_futures=True)


def one(truth: Path, seconds: int, keep: Path | None, *, confirm: bool, probes: str) -> Row:
    """One program in a copy of its folder, so that no other job finds its files."""
    known = json.loads(truth.read_text())
    with tempfile.TemporaryDirectory(prefix="programs-") as scratch:
        folder, out = Path(scratch, "job"), Path(scratch, "run")
        shutil.copytree(truth.parent, folder)
        command = [
            "run",
            "--json",
            "--force",
            "--probes",
            probes,
            "--out",
            str(out),
            "--timeout",
            str(seconds),
            "--",
        ]
        _nsadiag(command + command_of(known), folder)
        row = {"name": truth.stem, **judged(known, _verdict(out), folder)}
        if confirm and known["kind"] != "healthy":
            _nsadiag(["confirm", str(out), "--out", str(Path(scratch, "confirm"))], folder)
            row["confirmed_right"] = judged(known, _verdict(out), folder)["because_right"]
        if keep and not is_right(row) and out.exists():
            shutil.copytree(out, keep / truth.stem, dirs_exist_ok=True)
    return row


def _nsadiag(words: list[str], folder: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "nsadiag", *words],
        cwd=folder,
        env=environment(NSADIAG_PATIENCE="0"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
    )


def _verdict(out: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((out / "verdict.json").read_text()))
    except (OSError, ValueError):
        return {"outcome": None, "class": None, "guilty_ranks": None}


def judged(known: dict[str, Any], verdict: dict[str, Any], folder: Path) -> Row:
    """What was right of a verdict; None where the truth names nothing."""
    because = verdict.get("because") or {}
    stands = line_of(verdict.get("stands_at") or verdict.get("where") or {}, folder)
    causes = [
        line_of(because, folder),
        *(line_of(link.get("at") or {}, folder) for link in because.get("chain", ())),
    ]
    said = {
        "kind": known["kind"],
        "said": verdict["class"],
        "outcome": verdict["outcome"],
        "summary": str(verdict.get("summary", ""))[:300],
        "ranks": verdict["guilty_ranks"],
        "stands": stands,
        "because": causes[0],
        "load": round(os.getloadavg()[0], 1),
    }
    if known["kind"] == "healthy":
        return {
            **said,
            "accused": verdict["outcome"] != "healthy",
            "false_alarm": verdict["outcome"] == "hung",
        }
    classes = named(known.get("classes") or known.get("class"))
    places = [*named(known.get("stands_at")), *named(known.get("may_stand_at"))]
    origins, guilty = named(known.get("because_of")), known.get("guilty_ranks")
    return {
        **said,
        "class_right": verdict["class"] in classes if classes else None,
        "rank_right": verdict["guilty_ranks"] in (guilty, *known.get("guilty_accepted", ()))
        if guilty
        else None,
        "place_right": bool({stands, *causes} & {*places, *origins}) if places or origins else None,
        "cause_right": bool({stands, *causes} & set(origins)) if origins else None,
        "stands_right": stands in places if places else None,
        "because_right": causes[0] in origins if origins else None,
        "false_alarm": known["kind"] in CALM and verdict["outcome"] == "hung",
    }


def line_of(place: dict[str, Any], folder: Path) -> str:
    file = Path(str(place.get("file", "")))
    return f"{file.relative_to(folder) if file.is_relative_to(folder) else file}:{place.get('line')}"


def is_right(row: Row) -> bool:
    return not row.get("accused") and all(
        row.get(key) is not False for key in ("class_right", "rank_right", "place_right")
    )


def figures(rows: list[Row]) -> Row:
    healthy = [row for row in rows if row["kind"] == "healthy"]
    others = [row for row in rows if row["kind"] != "healthy"]
    return {
        "programs": len(others),
        "class_pct": percent(row["class_right"] for row in others),
        "rank_pct": percent(row["rank_right"] for row in others),
        "place_pct": percent(row["place_right"] for row in others),
        "cause_pct": percent(row["cause_right"] for row in others),
        "stands_pct": percent(row["stands_right"] for row in others),
        "because_pct": percent(row["because_right"] for row in others),
        "because_confirmed_pct": percent(row.get("confirmed_right") for row in others),
        "healthy": len(healthy),
        "accused": [row["name"] for row in healthy if row["accused"]],
        "false_alarms": sum(row["false_alarm"] for row in rows),
        "wrong": [
            {key: row.get(key) for key in ("name", "said", "ranks", "stands", "because", "summary")}
            for row in rows
            if not is_right(row)
        ],
    }


def table(told: Row) -> list[str]:
    kept = {key: value for key, value in told.items() if key != "wrong"}
    return [
        *(f"{key}: {value}" for key, value in kept.items()),
        "",
        *(
            f"wrong: {w['name']} was called {w['said']} of {w['ranks']} at {w['stands']}: {w['summary']}"
            for w in told["wrong"]
        ),
    ]


def is_program(document: Any, kinds: list[str]) -> bool:
    """Whether it is a truth, of a program of these kinds (none: of any) that can run here."""
    is_truth = isinstance(document, dict) and "launch" in document and can_run(document)
    return is_truth and (not kinds or document["kind"] in kinds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", type=Path, help="a folder of programs with their truth, or an archive")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("-k", metavar="EXPR", default="", help="names in which this is found")
    parser.add_argument("--kinds", default="", help="only programs of these kinds, as differs,raised")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--seconds", type=int, default=150, help="the limit of each")
    parser.add_argument("--rows", type=Path, help="a file of rows: earlier ones count, new ones are added")
    parser.add_argument("--keep", type=Path, help="where to keep the run directories of wrong verdicts")
    parser.add_argument("--probes", default="light", help="of `nsadiag run`; `light,paths` records paths")
    parser.add_argument("--confirm", action="store_true", help="rehearse each failed run afterwards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="programs-") as scratch:
        folder = unpacked(options.programs, Path(scratch))
        truths = [path for path in sorted(folder.rglob("*.json")) if re.search(options.k, path.stem)]
        kinds = options.kinds.split(",") if options.kinds else []
        truths = [path for path in truths if is_program(json.loads(path.read_text()), kinds)]
        rows = collected(
            options.rows,
            measured(
                truths,
                options.jobs,
                options.seconds,
                options.keep,
                confirm=options.confirm,
                probes=options.probes,
            ),
        )
    told = figures(rows)
    answer(told, table(told), as_json=options.json)


if __name__ == "__main__":
    main()
