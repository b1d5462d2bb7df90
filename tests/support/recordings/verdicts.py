"""Whole recordings and what they come to: unpacked and judged once a test run, whichever tests and workers ask for it."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import CellEvidence
from nsadiag.analysis.verdict import judge, judge_directory
from nsadiag.evidence.layout import RunDir

from ..mutation.parts import listened_to, with_only
from .golden import unpack

WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of this test run that all of its workers see."""
    base = factory.getbasetemp()
    folder = (base.parent if WORKER else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def _own_name(archive: Path) -> str:
    """Recordings of one name are of one script: with paths, on other machines."""
    return f"{archive.parent.name}-{archive.name}"


class Answers:
    """Documents by name, kept in a folder: computed by whoever asks first. Two at once come to the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def of(self, name: str, compute: Callable[[], Any]) -> Any:
        kept = self.folder / f"{name}.json"
        if not kept.exists():
            unfinished = self.folder / f"{name}.{WORKER or 'alone'}"
            unfinished.write_text(json.dumps(compute()))
            unfinished.replace(kept)
        return json.loads(kept.read_text())


class Recordings:
    """The files of whole recordings, to be read; a test that needs others in their place has links to them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def of(self, archive: Path) -> RunDir:
        kept = self._folder / _own_name(archive)
        if not kept.exists():
            unfinished = Path(tempfile.mkdtemp(dir=self._folder))
            unpack(archive, unfinished)
            try:
                unfinished.rename(kept)
            except OSError:  # another worker was first
                shutil.rmtree(unfinished)
        return RunDir(path=kept)

    def linked(self, archive: Path, folder: Path) -> RunDir:
        """The same files in a folder of its own, from which they may be removed: they are not to be written to."""
        shutil.copytree(self.of(archive).path, folder, copy_function=os.link)
        return RunDir(path=folder)


@dataclass(frozen=True)
class Backwards:
    """What a recording comes to where ranks and processes are read in the reverse order."""

    verdict: dict[str, Any]
    spoke: list[str]  # the parts that concluded something on the way to it


class Verdicts:
    """What whole recordings come to; of those that are asked for in both orders, each is judged twice in all."""

    def __init__(self, folder: Path, recordings: Recordings) -> None:
        self._folder, self._recordings = folder, recordings
        self._forwards, self._backwards = (Answers(folder / order) for order in ("forwards", "backwards"))

    def of(self, archive: Path) -> dict[str, Any]:
        """verdict.json."""
        verdict: dict[str, Any] = self._forwards.of(_own_name(archive), lambda: self._judged(archive))
        return verdict

    def _judged(self, archive: Path) -> dict[str, Any]:
        # A judgement writes what it came to beside the evidence.
        with tempfile.TemporaryDirectory(dir=self._folder) as own:
            return judge_directory(self._recordings.linked(archive, Path(own) / "run").path).to_json()

    def backwards(self, archive: Path) -> Backwards:
        run = self._recordings.of(archive)
        return Backwards(*self._backwards.of(_own_name(archive), lambda: _judged_backwards(run)))


def backwards_of(cell: CellEvidence) -> CellEvidence:
    return dataclasses.replace(cell, ranks=cell.ranks[::-1], processes=cell.processes[::-1])


def _judged_backwards(run: RunDir) -> tuple[dict[str, Any], list[str]]:
    spoke: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        with_only(patch, lambda name, part: listened_to(name, part, spoke))
        return judge(backwards_of(load_cell(run.path))).to_json(), sorted(spoke)


def rotated(items: list[Path]) -> list[Path]:
    """The same, begun elsewhere by each worker: what they work through together they share."""
    number = int(WORKER.removeprefix("gw") or 0)
    begin = number * len(items) // max(int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")), 1)
    return items[begin:] + items[:begin]
