"""Ends for want of memory, and at limits, as the kernel, Slurm, Ray and Kubernetes say them."""

from pathlib import Path

import pytest
from support.recordings.collected import FAILURES, KILLED

from nsadiag.analysis.verdict import judge_evidence

SLURM = "slurmstepd: error: Detected 1 oom_kill event in StepId=2310551.0. Some of the step tasks have been OOM Killed.\nsrun: error: gpu021: task 3: Out Of Memory\n"
RAY = "(raylet) node_manager.cc:3277: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons\n"


@pytest.mark.parametrize(
    ("text", "guilty", "by"), [(SLURM, (3,), "Slurm"), (RAY, (), "Ray"), (KILLED, (), "the kernel")]
)
def test_who_ended_it_is_said_and_a_rank_where_a_line_tells_it(
    tmp_path: Path, text: str, guilty: tuple[int, ...], by: str
) -> None:
    (tmp_path / "job.out").write_text(text)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("host_oom", guilty)
    assert by in verdict.summary
    assert verdict.action is not None
    assert verdict.action.do == "fix environment"


def test_the_kernels_log_and_torchruns_table_meet_by_pid(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(FAILURES.replace("77", "44111").replace(": 1 (pid", ": -9 (pid"))
    (tmp_path / "dmesg.txt").write_text(KILLED)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("host_oom", (1,))


def test_a_time_limit_is_no_memory(tmp_path: Path) -> None:
    line = "slurmstepd: error: *** STEP 2310551.0 ON gpu021 CANCELLED AT 2026-11-28T10:00:00 DUE TO TIME LIMIT ***\n"
    (tmp_path / "job.out").write_text(line)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_killed", ())
    assert "time limit" in verdict.summary


KILLS = [
    ("srun: error: gpu021: task 3: Killed\n", (3,)),
    ("./run.sh: line 12: 31337 Killed                  python train.py --gpus 4\n", ()),
    (
        "[2025-03-19 21:53:34,902] [ERROR] [launch.py:325:sigkill_handler] ['/opt/venv/bin/python', '-u', 'train.py', "
        "'--local_rank=1'] exits with return code = -9\n",
        (),
    ),
]


@pytest.mark.parametrize(("line", "guilty"), KILLS)
def test_a_kill_without_a_reason_says_what_would_tell_it(
    tmp_path: Path, line: str, guilty: tuple[int, ...]
) -> None:
    (tmp_path / "job.out").write_text(line)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_killed", guilty)
    assert [each.cls for each in verdict.hypotheses] == ["host_oom", "rank_killed"]
    assert verdict.action is not None
    assert verdict.action.do == "unknown"
