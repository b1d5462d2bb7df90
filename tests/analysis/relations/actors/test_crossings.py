"""Jobs of several launchers: the verdict on recordings of real ones."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from support.recordings.role_record import CASES, GOLDEN, WRAPPED, misses

RECORDED = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))
# On torch 2.11 with a GPU, where gloo's threads have no name of their own.
BY_RUN = sorted([*WRAPPED.glob("*.tar.xz"), *(GOLDEN / "cuda").glob("*.tar.xz")])


@pytest.mark.parametrize(
    "archive",
    [*(GOLDEN / f"{n}.tar.xz" for n in RECORDED), *BY_RUN],
    ids=lambda a: f"{a.parent.name}-{a.name[:-7]}",
)
def test_a_recorded_job_of_several_launchers_has_its_verdict(archive: Path, tmp_path: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert misses(archive.name.removesuffix(".tar.xz"), tmp_path) == []
    document = json.loads((tmp_path / "verdict.json").read_text())
    assert all((tmp_path / each["source"].partition("#")[0]).exists() for each in document["evidence"])


def test_faulty_and_healthy_ones_are_recorded() -> None:
    faulty = {name for name in RECORDED if CASES[name].classes}
    assert len(faulty) >= 8 and len(set(RECORDED) - faulty) >= 8
