"""The sentences that verdicts on the recordings consist of: `python -m tests.support.recordings.sentences > FILE`, to be read by a person.

One a line: the recording, the key, the sentence. Sentences that differ only in numbers from 2 on, names and lines are
printed once.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands.explain.document import explain
from nsadiag.evidence.layout import RunDir

from .golden import GOLDEN, unpack

VARIES = re.compile(r"(?<![\d.])([2-9]|\d\d)[\d.,]*|`[^`]*`|[\w./-]+\.py\b")
Sentence = tuple[str, str]  # key, text


def of_verdict(verdict: dict[str, Any]) -> Iterator[Sentence]:
    """Whatever of a verdict.json a person reads."""
    yield "summary", verdict["summary"]
    yield from (("evidence", each["claim"]) for each in verdict["evidence"])
    yield from (("rejected", each["because"]) for each in verdict["rejected"])
    yield from (("gap", each) for each in verdict["gaps"])
    yield from ((key, verdict[key]) for key in ("fix", "next") if verdict[key])
    if verdict["action"]:
        yield "action", verdict["action"]["because"]


def of_trials(document: dict[str, Any]) -> Iterator[Sentence]:
    """Whatever of `analyze --explain` a person reads: findings that were outranked, facts, conditions."""
    for row in document["rules"]:
        yield from (("says", row["says"]) for _ in range("says" in row))
        yield from ((f"declined by {row['rule']}", each["fact"]) for each in row["declined"])
    for row in document["candidates"]:
        yield from ((key, row[key]) for key in ("lost", "decisive", "shown_by") if row.get(key))
    yield from (("condition", f"{row['condition']} {row['because']}") for row in document["rejected"])
    yield from (("obstacle", document["obstacle"]) for _ in range("obstacle" in document))


def of_recording(archive: Path) -> list[Sentence]:
    with tempfile.TemporaryDirectory() as folder:
        run: RunDir = unpack(archive, Path(folder))
        verdict = judge_directory(run.path).to_json()
        return [*of_verdict(verdict), *of_trials(explain([run.path]))]


def main() -> None:
    archives = sorted(GOLDEN.glob(f"{sys.argv[1] if len(sys.argv) > 1 else ''}*.tar.*"))
    seen: set[Sentence] = set()
    with ProcessPoolExecutor(2) as pool:
        for archive, sentences in zip(archives, pool.map(of_recording, archives), strict=True):
            for key, text in sentences:
                if (key, shape := VARIES.sub("N", text)) not in seen:
                    seen.add((key, shape))
                    print(archive.name.partition(".")[0], key, text, sep="\t")


if __name__ == "__main__":
    main()
