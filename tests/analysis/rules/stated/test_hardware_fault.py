"""Faults of GPUs, as the driver reports them."""

from pathlib import Path

from support.recordings.collected import OFF_THE_BUS, raised

from nsadiag.analysis.verdict import judge_evidence

LAUNCH = "torch.AcceleratorError: CUDA error: unspecified launch failure"


def test_a_lost_gpu_explains_the_error_of_the_one_rank_that_raised(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(OFF_THE_BUS)
    (tmp_path / "job.log").write_text(raised(LAUNCH, rank=3))
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rank_exception", (3,))
    assert "Xid 79" in verdict.summary
    assert verdict.action is not None
    assert verdict.action.do == "exclude host"
    assert "CUDA_LAUNCH_BLOCKING" not in (verdict.next or "")


def test_an_xid_that_applications_cause_blames_no_hardware(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(
        OFF_THE_BUS.replace(": 79,", ": 31,").replace("GPU has fallen off the bus", "Ch 00000010")
    )
    (tmp_path / "job.log").write_text(raised(LAUNCH, rank=3))
    verdict = judge_evidence(tmp_path)
    assert verdict.mechanism == "rank_exception"
