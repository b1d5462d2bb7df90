"""Jobs of several launchers: the verdict on recordings of real ones."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from support.role_record import CASES, GOLDEN, misses

RECORDED = sorted(path.name.removesuffix(".tar.xz") for path in GOLDEN.glob("*.tar.xz"))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_job_of_several_launchers_has_its_verdict(name: str, tmp_path: Path) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as packed:
        packed.extractall(tmp_path, filter="data")
    assert misses(name, tmp_path) == []


def test_faulty_and_healthy_ones_are_recorded() -> None:
    faulty = {name for name in RECORDED if CASES[name].classes}
    assert len(faulty) >= 8 and len(set(RECORDED) - faulty) >= 8
