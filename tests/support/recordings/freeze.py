"""Verdicts of all recordings, whole and with parts missing, in one file: the witness of a change that should change none.

python -m tests.support.recordings.freeze write before.json      # at the commit to compare with
python -m tests.support.recordings.freeze compare before.json    # now: what a person acts upon
python -m tests.support.recordings.freeze compare before.json --whole    # each key of verdict.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from nsadiag.analysis.verdict import judge_directory
from nsadiag.evidence.layout import RunDir

from .golden import GOLDEN, unpack

ACTED_UPON = (
    "class",
    "outcome",
    "guilty_ranks",
    "signature",
    "certainty",
    "action",
    "where",
    "peers_at",
    "confidence",
)
HALVED = ("ranks/**/fr.json", "ranks/**/py_spy.json", "ranks/*/blackbox.bin", "sources/*")

Verdicts = dict[str, dict[str, Any]]


def _variants(run: RunDir, folder: Path) -> Iterator[tuple[str, Path]]:
    """The recording, then without each of its ranks, then with files of one kind cut in half."""
    yield "whole", run.path
    for rank in list(run.ranks()):
        rest = folder / f"without-{rank.rank}"
        shutil.copytree(run.path, rest)
        shutil.rmtree(RunDir(path=rest).rank(rank.rank).path)
        yield f"without rank {rank.rank}", rest
    for number, pattern in enumerate(HALVED):
        rest = folder / f"halved-{number}"
        shutil.copytree(run.path, rest)
        for path in filter(Path.is_file, rest.glob(pattern)):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        yield f"{pattern} halved", rest


def verdicts_of(archive: Path) -> Verdicts:
    """The verdict on each variant of one recording, by name."""
    name = archive.name.partition(".")[0]
    with tempfile.TemporaryDirectory() as scratch:
        run = unpack(archive, Path(scratch) / name)
        found = {}
        for variant, path in _variants(run, Path(scratch)):
            text = json.dumps(judge_directory(path).to_json()).replace(str(path), "RUN")
            found[f"{name}: {variant}"] = json.loads(text)
        return found


def everything() -> Verdicts:
    """All verdicts, in the order of their names."""
    archives = sorted(GOLDEN.glob("*.tar.*"))
    with ProcessPoolExecutor() as pool:
        return dict(sorted(item for found in pool.map(verdicts_of, archives) for item in found.items()))


def differences(before: Verdicts, now: Verdicts, *, whole: bool) -> Iterator[str]:
    """One line for each key that has another value."""
    for name in sorted({*before, *now}):
        old, new = before.get(name, {}), now.get(name, {})
        for key in sorted({*old, *new}) if whole else ACTED_UPON:
            if old.get(key) != new.get(key):
                yield f"{name}: {key}: {json.dumps(old.get(key))} -> {json.dumps(new.get(key))}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--whole", action="store_true", help="compare each key of verdict.json")
    given = parser.parse_args()
    if given.what == "write":
        given.file.write_text(json.dumps(everything(), indent=1))
        return 0
    now = everything()
    found = list(differences(json.loads(given.file.read_text()), now, whole=given.whole))
    print(*found, sep="\n")
    print(f"{len(now)} verdicts, {len(found)} differences", file=sys.stderr)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
