"""Copies of a job's folder: with another text of some files, and without what cannot be copied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsadiag.errors import MachineError
from nsadiag.repair import job as jobs
from nsadiag.repair.job import Job, copied


def of(folder: Path) -> Job:
    return Job(command=("torchrun", "--nproc-per-node", "2", "train.py"), cwd=folder, folder=folder, ranks=2)


def test_a_copy_has_the_new_text_and_neither_pipes_nor_environments(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("old")
    (tmp_path / "data.txt").write_text("data")
    (tmp_path / ".venv").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with copied(of(tmp_path), {"train.py": "new"}) as copy:
        assert sorted(path.name for path in copy.iterdir()) == ["data.txt", "train.py"]
        assert (copy / "train.py").read_text() == "new"
    assert not copy.exists()
    assert (tmp_path / "train.py").read_text() == "old"


def test_a_folder_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MOST_FILES", 2)
    for name in "abc":
        (tmp_path / name).touch()
    with pytest.raises(MachineError, match="too large to be copied"), copied(of(tmp_path), {}):
        pass
