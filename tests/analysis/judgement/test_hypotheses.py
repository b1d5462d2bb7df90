"""Evidence that cannot decide: what fits, and the one thing to collect that would tell."""

from pathlib import Path

import pytest
from support.recordings.collected import lost_peer, saving, stepping, watchdog_lines

from nsadiag.analysis.verdict import judge_evidence
from nsadiag.evidence.records import Verdict


def judged(folder: Path, text: str, name: str = "job.log") -> Verdict:
    (folder / name).write_text(text)
    return judge_evidence(folder)


def test_timeouts_of_all_ranks_in_one_call_blame_no_network(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "".join(map(watchdog_lines, range(4))))
    assert (verdict.cls, verdict.outcome, verdict.guilty_ranks) == ("unknown", "hung", ())
    assert [each.cls for each in verdict.hypotheses] == ["missing_rank", "gpu_kernel_hang", "network_stall"]
    assert verdict.action is not None
    assert verdict.action.do == "unknown"


LAUNCHED = [
    ("W1129 torch/distributed/run.py:793] torchrun\n", "torchrun "),
    ("srun: Job step aborted\n", "srun "),
    ("(TrainWorker pid=4711, ip=10.0.0.7) step 4\n", "ray job submit"),
    ("[pod/train-0/pytorch] step 4\n", "kubectl "),
    ("[2026-11-29 10:00:00,000] [INFO] [launch.py:351:main] Process 41 exits\n", "deepspeed "),
    ("  File /venv/lib/python3.12/site-packages/accelerate/commands/launch.py\n", "accelerate launch"),
]


@pytest.mark.parametrize(("line", "command"), LAUNCHED)
def test_what_to_collect_is_a_command_for_this_launcher(tmp_path: Path, line: str, command: str) -> None:
    verdict = judged(tmp_path, line + "".join(map(watchdog_lines, range(4))))
    assert command in verdict.hypotheses[0].command


def test_ranks_of_which_nothing_is_known_come_first(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "World size: 8\n" + watchdog_lines(0) + watchdog_lines(3))
    first = verdict.hypotheses[0]
    assert first.cls == "missing_rank"
    assert "ranks 1-2, 4-7" in first.because
    assert "--log-dir" in first.command


def test_lost_connections_alone_point_to_the_one_that_was_lost(tmp_path: Path) -> None:
    verdict = judged(tmp_path, lost_peer(0) + lost_peer(2))
    assert verdict.guilty_ranks == ()
    assert [each.cls for each in verdict.hypotheses] == ["rank_exception", "host_oom"]
    assert "rank 1" in verdict.hypotheses[0].because


def test_stacks_of_equal_sides_are_taken_again(tmp_path: Path) -> None:
    for number, text in enumerate([stepping(41), stepping(42), saving(44), saving(45)]):
        (tmp_path / f"stack_rank_{number}.txt").write_text(text)
    verdict = judge_evidence(tmp_path)
    assert {each.cls for each in verdict.hypotheses} == {"missing_rank", "healthy"}
    assert any("py-spy dump" in each.command for each in verdict.hypotheses)


def test_evidence_that_decides_has_no_hypotheses(tmp_path: Path) -> None:
    ahead = "".join(watchdog_lines(rank, seq=4411) for rank in range(8) if rank != 5)
    assert judged(tmp_path, ahead + watchdog_lines(5, seq=4410)).hypotheses == ()


def test_the_document_has_them_and_is_read_back(tmp_path: Path) -> None:
    verdict = judged(tmp_path, "".join(map(watchdog_lines, range(4))))
    document = verdict.to_json()
    assert document["hypotheses"][0]["class"] == "missing_rank"
    assert Verdict.from_json(document).hypotheses == verdict.hypotheses
