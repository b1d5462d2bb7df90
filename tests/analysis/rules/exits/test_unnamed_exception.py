"""Errors in a log of which no line tells the rank."""

from pathlib import Path

import pytest
from support.recordings.collected import MEMORY

from nsadiag.analysis.verdict import judge_evidence

SHM = (
    "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO "
    "for details), NCCL version 2.27.5 Last error: Error while creating shared memory segment /dev/shm/nccl-WU88OE, error: "
    "No space left on device (28)\n"
)
FRAMES = 'Traceback (most recent call last):\n  File "/job/train.py", line 52, in train\n    step(batch)\n'


@pytest.mark.parametrize(
    ("error", "action"),
    [
        ("TypeError: step() takes 0 positional arguments but 1 was given\n", "fix code"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n", "exclude host"),
        ("OSError: [Errno 28] No space left on device\n", "fix environment"),
        (
            "RuntimeError: The server socket has failed to listen on any local network address. port: 29500, EADDRINUSE\n",
            "fix environment",
        ),
        ("torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n", "unknown"),
        (SHM, "fix environment"),
    ],
)
def test_the_action_is_what_the_text_supports(tmp_path: Path, error: str, action: str) -> None:
    (tmp_path / "job.log").write_text(FRAMES + error)
    verdict = judge_evidence(tmp_path)
    assert verdict.cls == "rank_exception"
    assert verdict.action is not None
    assert verdict.action.do == action


def test_memory_of_a_rank_that_nobody_names_is_nobodys(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(MEMORY)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks, verdict.world_size) == ("gpu_oom", (), 0)
    assert "rank 0" not in verdict.summary
    assert any("which rank" in gap for gap in verdict.gaps), verdict.gaps


def test_a_full_shared_memory_is_said_and_what_helps(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(FRAMES + SHM)
    verdict = judge_evidence(tmp_path)
    assert "shared memory segment" in verdict.summary
    assert "--shm-size" in (verdict.fix or "")
