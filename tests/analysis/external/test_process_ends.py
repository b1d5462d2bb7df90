"""Ends that a scheduler, a shell or a launcher states are ends of their ranks."""

from pathlib import Path

import pytest

from nsadiag.analysis.external.process_ends import end_of
from nsadiag.analysis.verdict import judge_evidence
from nsadiag.evidence.messages import ProcessEnd


@pytest.mark.parametrize(
    ("stated", "signal", "code"),
    [
        (ProcessEnd(line=1, by="slurm", code=1), None, 1),
        (ProcessEnd(line=1, by="torchrun", code=-9), 9, None),
        (ProcessEnd(line=1, by="slurm", code=137), 9, None),
        (ProcessEnd(line=1, by="slurm", signal="Segmentation fault"), 11, None),
        (ProcessEnd(line=1, by="spawn", signal="SIGKILL"), 9, None),
    ],
)
def test_an_end_has_the_signal_or_the_code(stated: ProcessEnd, signal: int | None, code: int | None) -> None:
    end = end_of(stated)
    assert end is not None
    assert (end.signal, end.exit_code) == (signal, code)


def test_an_end_without_either_is_none() -> None:
    assert end_of(ProcessEnd(line=1, by="ray")) is None


def test_the_task_that_srun_names_is_the_rank_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "slurm-7.out").write_text(
        "World size: 8\nstep 41\nsrun: error: node7: task 3: Segmentation fault (core dumped)\n"
    )
    verdict = judge_evidence(tmp_path)
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("crashed", "rank_killed", (3,))


def test_an_exit_that_torchruns_agent_states_needs_no_table(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(
        "E1129 11:57:07.249000 29471 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
        "local_rank: 3 (pid: 8811) of binary: python\n"
    )
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_killed", (3,))
