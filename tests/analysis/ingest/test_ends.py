"""How a rank ended, where its launcher reaped it before anyone could look at the zombie."""

import json
from dataclasses import replace
from pathlib import Path

from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.ingest.ends import completed_end
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.documents.exceptions import Leaving
from nsadiag.evidence.documents.watch import End

UNSEEN = End(pid=10605, t_s=15.7)
# As torchrun 2.11 to 2.15 print it.
TORCHRUN = (
    "E1120 20:26:57.997000 10568 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})"
    " local_rank: 1 (pid: 10605) of binary: /usr/bin/python\n"
)


def test_faulthandler_tells_the_signal() -> None:
    faults = "Fatal Python error: Segmentation fault\n\nExtension modules: torch._C\n"
    assert completed_end(UNSEEN, faults, "").signal == 11


def test_torchrun_tells_a_signal_or_a_code() -> None:
    assert completed_end(UNSEEN, "", TORCHRUN.format(code=-9)).signal == 9
    assert completed_end(UNSEEN, "", TORCHRUN.format(code=3)).exit_code == 3


def test_the_exit_of_a_spawned_process_tells_its_code() -> None:
    assert completed_end(UNSEEN, "", "", Leaving(call="exit", place="", ended_with=1)).exit_code == 1
    # Whether the user's own call was caught is not known.
    assert completed_end(UNSEEN, "", "", Leaving(call="exit", place="", arguments="(1,)")) == UNSEEN


def test_another_process_is_not_taken_for_the_rank() -> None:
    assert completed_end(replace(UNSEEN, pid=1), "", TORCHRUN.format(code=-9)).signal is None


def test_what_was_seen_is_not_changed() -> None:
    seen = replace(UNSEEN, exit_code=0)
    assert completed_end(seen, "Fatal Python error: Aborted", TORCHRUN.format(code=-9)) == seen


def test_ranks_that_are_interrupted_together_ended_a_silence_whatever_code_they_left(tmp_path: Path) -> None:
    """Beside ranks that torchrun has started nobody learns how they ended: of a Ctrl-C their exceptions tell."""
    run = unpack(archive_of("missing_rank_interrupted"), tmp_path)
    by_signal = judge(load_cell(run.path))
    ends = json.loads(run.ends.read_text())
    unseen = {rank: {**end, "signal": None, "exit_code": None, "clean": True} for rank, end in ends.items()}
    run.ends.write_text(json.dumps(unseen))
    found = judge(load_cell(run.path))
    assert (found.outcome, found.cls, found.guilty_ranks) == ("hung", "missing_rank", (1,))
    assert found.summary == by_signal.summary


def test_ranks_that_were_restarted_and_never_met_are_led_back_to_what_ended_their_predecessors(
    tmp_path: Path,
) -> None:
    run = unpack(archive_of("rank_exception_bad_batch"), tmp_path)
    before = judge(load_cell(run.path))
    for rank in run.ranks():
        left = list(rank.path.iterdir())
        earlier = rank.path / "attempts" / "00"
        earlier.mkdir(parents=True)
        for entry in left:
            entry.rename(earlier / entry.name)
        told = json.loads((earlier / "exception.json").read_text())
        told |= {"message": "Gloo connectFullMesh failed: Connection refused", "cause": None, "frames": []}
        rank.exception.write_text(json.dumps({**told, "type": "RuntimeError"}))
    after = judge(load_cell(run.path))
    assert (after.cls, after.guilty_ranks) == ("rank_exception", before.guilty_ranks)
    assert after.where.line == before.where.line
    assert "attempt 0" in after.summary


def test_a_restart_that_succeeded_is_told_and_not_blamed(tmp_path: Path) -> None:
    failed = unpack(archive_of("rank_exception_bad_batch"), tmp_path / "failed")
    run = unpack(archive_of("healthy_ddp"), tmp_path / "run")
    for rank, before in zip(run.ranks(), failed.ranks(), strict=True):
        earlier = rank.path / "attempts" / "00"
        earlier.mkdir(parents=True)
        if before.exception.exists():
            (earlier / "exception.json").write_text(before.exception.read_text())
    verdict = judge(load_cell(run.path))
    assert (verdict.outcome, verdict.cls, verdict.guilty_ranks) == ("healthy", "healthy", ())
    assert "restart" in verdict.summary and any("attempt 0" in e.claim for e in verdict.evidence)
