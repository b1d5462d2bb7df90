"""Copies of a job's folder: with another text of some files, and without what cannot be copied or is not the job's."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from nsadiag.errors import MachineError
from nsadiag.repair import selection
from nsadiag.repair.job import Job, copied


def of(folder: Path, *words: str, cwd: Path | None = None, sources: tuple[str, ...] = ()) -> Job:
    return Job(
        command=("torchrun", "--nproc-per-node", "2", *(words or ("train.py",))),
        cwd=cwd or folder,
        folder=folder,
        ranks=2,
        sources={path: (folder / path).read_text() for path in sources},
    )


def written(folder: Path, **sizes: int) -> None:
    """Files by their paths, with __ for /, of so many bytes."""
    for name, size in sizes.items():
        path = folder / name.replace("__", "/").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"#" * size)


def files_in(copy: Path) -> list[str]:
    return sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())


@pytest.fixture
def at_most_1000_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "MOST_BYTES", 1000)


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


@pytest.mark.usefixtures("at_most_1000_bytes")
def test_a_script_beside_large_things_is_copied_without_them(tmp_path: Path) -> None:
    """As in a home folder: what is small comes along, whatever it is, but for hidden settings and keys."""
    written(tmp_path, train_py=100, helper_py=20, notes=80, videos__one=5000, videos__two=90, weights=4000)
    written(tmp_path / ".ssh", id_rsa=10)
    job = of(tmp_path, sources=("train.py",))
    with copied(job, {}) as copy:
        assert files_in(copy) == ["helper.py", "notes", "train.py"]
    assert [path.name for path in job.selection.missing] == ["videos", "weights"]


@pytest.mark.usefixtures("at_most_1000_bytes")
def test_a_project_in_a_monorepo_is_copied_with_its_packages_and_what_the_command_names(
    tmp_path: Path,
) -> None:
    written(
        tmp_path,
        projects__vision__train_py=50,
        projects__vision__data__images=300,
        projects__other__blob=3000,
    )
    written(tmp_path, common__losses_py=40, common__tables=200, archive__old=2000, settings=100)
    sources = ("projects/vision/train.py", "common/losses.py")
    line = ("projects/vision/train.py", "--config=settings")
    with copied(of(tmp_path, *line, sources=sources), {}) as copy:
        assert files_in(copy) == [
            "common/losses.py",
            "common/tables",
            "projects/vision/data/images",
            "projects/vision/train.py",
            "settings",
        ]


@pytest.mark.usefixtures("at_most_1000_bytes")
def test_data_that_the_command_names_is_never_left_out(tmp_path: Path) -> None:
    written(tmp_path, train_py=50, data__images=3000)
    job = of(tmp_path, "train.py", "--data", "data", sources=("train.py",))
    with pytest.raises(MachineError, match="too large to be copied"), copied(job, {}):
        pass


@pytest.mark.usefixtures("at_most_1000_bytes")
def test_a_file_that_the_job_did_not_find_in_its_copy_is_known(tmp_path: Path) -> None:
    written(tmp_path, train_py=50, images__one=3000)
    found = of(tmp_path, sources=("train.py",)).selection
    message = "FileNotFoundError: [Errno 2] No such file or directory: 'images/one'"
    assert found.read_by(message) == tmp_path / "images"
    assert found.read_by("FileNotFoundError: [Errno 2] No such file or directory: 'other'") is None
    assert found.read_by("ValueError: images") is None


@pytest.mark.usefixtures("at_most_1000_bytes")
def test_the_working_directory_is_there_even_if_nothing_of_it_is(tmp_path: Path) -> None:
    written(tmp_path, scripts__train_py=50, work__blob=3000)
    cwd = tmp_path / "work"
    with copied(of(tmp_path, "../scripts/train.py", cwd=cwd, sources=("scripts/train.py",)), {}) as copy:
        assert files_in(copy) == ["scripts/train.py"]
        assert (copy / "work").is_dir()


def test_a_job_in_the_folder_of_temporary_files_is_copied_without_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    written(tmp_path, train_py=5)
    with copied(of(tmp_path), {}) as copy:
        assert tmp_path in copy.parents
        assert files_in(copy) == ["train.py"]
