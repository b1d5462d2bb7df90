"""Patches of others: applied by git to copies of the sources, and refused where they lead elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.errors import UsageError
from nsadiag.repair.change import Change
from nsadiag.repair.job import Job
from nsadiag.repair.patch import change_of

BEFORE = "import torch\n\nfor batch in loader:\n    step(batch)\n"
AFTER = BEFORE.replace("loader", "even(loader)")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "train.py").write_text(BEFORE)
    return Job(
        command=("torchrun", "--nproc-per-node", "2", "train.py"), cwd=tmp_path, folder=tmp_path, ranks=2
    )


def test_the_diff_of_a_change_makes_the_same_change_again(job: Job) -> None:
    change = Change.of({"train.py": BEFORE}, {"train.py": AFTER})
    assert change_of(job, change.diff()) == change
    assert (job.folder / "train.py").read_text() == BEFORE


def test_a_new_file_is_part_of_a_change(job: Job) -> None:
    change = Change.of({"train.py": BEFORE}, {"train.py": AFTER, "even.py": "def even(x):\n    return x\n"})
    assert change_of(job, change.diff()) == change


@pytest.mark.parametrize("path", ["../other.py", "/etc/passwd"])
def test_a_patch_that_leads_out_of_the_folder_is_refused(job: Job, path: str) -> None:
    with pytest.raises(UsageError, match="leads out"):
        change_of(job, f"--- {path}\n+++ {path}\n@@ -1 +1 @@\n-a\n+b\n")


def test_a_patch_for_another_text_is_refused(job: Job) -> None:
    with pytest.raises(UsageError, match="does not apply"):
        change_of(job, Change.of({"train.py": "a\nb\n"}, {"train.py": "a\nc\n"}).diff())


def test_text_that_is_no_patch_is_refused(job: Job) -> None:
    with pytest.raises(UsageError, match="no file is named"):
        change_of(job, "replace the condition")


def test_a_command_is_led_into_the_copy_with_another_number_of_ranks(job: Job) -> None:
    assert job.command_of(3, Path("/copy")) == ["torchrun", "--nproc-per-node", "3", "train.py"]
    whole = Job(
        command=("torchrun", "--nproc_per_node=2", f"{job.folder}/train.py"),
        cwd=job.cwd,
        folder=job.folder,
        ranks=2,
    )
    assert whole.command_of(1, Path("/copy")) == ["torchrun", "--nproc_per_node=1", "/copy/train.py"]
