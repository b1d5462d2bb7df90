"""Meetings that never came about, and networks that failed, by lines of logs."""

from pathlib import Path

from support.recordings.collected import PORT

from nsadiag.analysis.verdict import judge_evidence

IB = "ddp-worker-0:3468:4100 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.216.210.236<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv)\n"


def test_a_port_in_use_is_another_jobs_and_no_code_is_to_fix(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(PORT)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("rendezvous_mismatch", ())
    assert "--master-port" in (verdict.fix or "")
    assert verdict.action is not None
    assert verdict.action.do == "fix environment"


def test_a_failed_work_request_names_the_peer(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(IB)
    verdict = judge_evidence(tmp_path)
    assert (verdict.cls, verdict.guilty_ranks) == ("network_stall", ())
    assert "10.216.210.236" in verdict.summary
