"""Whose frames a verdict speaks of: the user's, else a library's by its name, and never nsadiag's own."""

from __future__ import annotations

import linecache
from pathlib import Path

from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.layout import RunDir, read_json, write_json
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.user_code import is_ours, is_user
from nsadiag.reports.facts import place_text
from nsadiag.reports.pictures.tracebacks import without_ours
from nsadiag.worker import place

SITE = "/venv/lib/python3/site-packages"
HUNG = "rank_conditional_save"
TRACEBACK = f"""Traceback (most recent call last):
  File "/job/train.py", line 9, in main
    model(batch)
  File "{SITE}/nsadiag/worker/probes/modules.py", line 40, in __call__
    return self.call(*args)
           ^^^^^^^^^^^^^^^^
  File "{SITE}/torch/nn/modules/module.py", line 1773, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
ValueError: no such batch
"""


def moved(run: RunDir, to: str) -> None:
    """All documents, as if the script lay in that folder."""
    for path in [p for p in run.path.rglob("*") if p.suffix in (".json", ".jsonl")]:
        path.write_text(path.read_text().replace("/job/repro/", f"{to}/"))


def verdict_on(run: RunDir) -> Verdict:
    return judge(load_cell(run.path))


def test_a_package_that_the_rank_recorded_as_the_users_has_the_same_verdict(tmp_path: Path) -> None:
    plain = verdict_on(unpack(archive_of(HUNG), tmp_path / "plain"))
    run = unpack(archive_of(HUNG), tmp_path / "installed")
    moved(run, f"{SITE}/uxpkg")
    for rank in run.ranks():
        write_json(rank.meta, {**read_json(rank.meta), "user_code": ["uxpkg"]})
    verdict = verdict_on(run)
    assert (verdict.cls, verdict.guilty_ranks, verdict.signature) == (
        plain.cls,
        plain.guilty_ranks,
        plain.signature,
    )
    assert verdict.where and plain.where and verdict.where.line == plain.where.line


def test_without_a_frame_of_the_users_the_librarys_line_is_shown_as_one(tmp_path: Path) -> None:
    run = unpack(archive_of(HUNG), tmp_path)
    moved(run, f"{SITE}/trainlib")
    verdict = verdict_on(run)
    assert verdict.where
    assert verdict.where.library
    assert verdict.where.file == f"{SITE}/trainlib/{HUNG}.py"
    assert place_text(verdict.where).endswith("(library)")


TRAINER = f"{SITE}/transformers/trainer.py"
C10D = f"{SITE}/torch/distributed/distributed_c10d.py"


def frames(*calls: tuple[str, str, int]) -> list[dict[str, object]]:
    """Given outermost first, as one reads them."""
    return [{"filename": file, "name": name, "line": line} for file, name, line in calls[::-1]]


def within_a_framework(path: Path, *, users: int = 30) -> Verdict:
    """Rank 0 evaluates where rank 1 trains; the user's lines are the same, unless rank 1 is at another one."""
    run = unpack(archive_of(HUNG), path)
    script = f"/job/repro/{HUNG}.py"
    inside = (("Trainer._save", TRAINER, 2622), ("Trainer.training_step", TRAINER, 2548))
    for rank, (name, file, line) in zip(run.ranks(), inside, strict=True):
        stack = frames(
            (script, "main", users if rank.rank else 30),
            (file, "Trainer.train", line),
            (file, name, 7),
            (C10D, "all_reduce", 3),
        )
        for capture in rank.captures():
            write_json(capture.py_spy, [{"thread_name": "MainThread", "os_thread_id": 1, "frames": stack}])
    return verdict_on(run)


def test_where_ranks_part_within_a_framework_is_evidence(tmp_path: Path) -> None:
    claims = [each.claim for each in within_a_framework(tmp_path).evidence]
    assert any(
        "diverge in Trainer.train of transformers" in claim
        and "Trainer._save (trainer.py:7)" in claim
        and "Trainer.training_step (trainer.py:7)" in claim
        for claim in claims
    ), claims


def test_where_the_users_lines_differ_they_tell_more(tmp_path: Path) -> None:
    claims = [each.claim for each in within_a_framework(tmp_path, users=40).evidence]
    assert not any("transformers" in claim for claim in claims)


def test_tracebacks_for_a_tracker_leave_our_frames_out() -> None:
    shown = without_ours(TRACEBACK)
    assert "nsadiag" not in shown
    assert "self.call" not in shown
    assert [line for line in TRACEBACK.splitlines() if line in shown.splitlines()] == shown.splitlines()
    assert "_wrapped_call_impl" in shown
    assert shown.endswith("ValueError: no such batch")


def locked_in(path: Path, file: str, line: int) -> Verdict:
    """The verdict on a rank that waits for a lock, with that line between it and the user's."""
    run = unpack(archive_of("local_lock_deadlock_dropped_record"), path)
    ours = {"filename": file, "name": "number_of", "line": line}
    for capture in run.rank(1).captures():
        threads = read_json(capture.py_spy)
        for thread in (t for t in threads if t["thread_name"] == "MainThread"):
            users = next(n for n, f in enumerate(thread["frames"]) if is_user(f["filename"]))
            thread["frames"].insert(users, ours)
        write_json(capture.py_spy, threads)
    return verdict_on(run)


def test_a_lock_of_ours_is_no_verdict_about_the_user(tmp_path: Path) -> None:
    ours = tmp_path / "nsadiag" / "worker" / "names.py"
    ours.parent.mkdir(parents=True)
    ours.write_text("with self._lock:\n    pass\n")
    linecache.checkcache()
    verdict = locked_in(tmp_path / "run", str(ours), 1)
    assert (verdict.cls, verdict.guilty_ranks, verdict.where) == ("unknown", (), None)
    assert "fault of nsadiag" in verdict.summary


def test_a_line_of_ours_that_takes_no_lock_is_nothing_of_the_kind(tmp_path: Path) -> None:
    verdict = locked_in(tmp_path, str(place.__file__), 1)
    assert is_ours(str(place.__file__))
    assert "fault of nsadiag" not in verdict.summary


def test_a_signal_that_a_rank_sent_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    run = unpack(archive_of("rank_killed_sigkill"), tmp_path)
    verdict = verdict_on(run)
    sent = any(rank.signals.exists() for rank in run.ranks())
    assert verdict.fix and sent == ("The line shown sends SIGKILL" in verdict.fix)
    assert sent != ("OOM killer" in verdict.fix)
