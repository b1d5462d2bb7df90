"""Where no process may be read: faulthandler's stacks carry the verdict, and no verdict cites what is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Jobs
from support.processes.forking import FORKING
from support.promises import promises, script_of
from support.recordings.golden import archive_of, missed, recorded, uncited, unpack
from support.recordings.without_ptrace import hide

from nsadiag.agent import permission
from nsadiag.agent.captures.python.nonblocking_stacks import NonblockingStacks
from nsadiag.agent.captures.python.py_spy import find_py_spy
from nsadiag.agent.captures.target import CaptureError
from nsadiag.agent.checkup.check import Check
from nsadiag.agent.checkup.patient import patients
from nsadiag.agent.checkup.process import FAULTHANDLER, STACKS, with_faulthandler
from nsadiag.agent.namespaces import pid_of
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.verdict import judge
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame
from nsadiag.evidence.layout import RunDir, make_private_dir, write_json, write_private
from nsadiag.evidence.stacks import stacks_in
from nsadiag.reports import load_report
from nsadiag.reports.formats.speedscope import render_speedscope
from nsadiag.worker import ptracer

RECORDED = recorded()
IMPORT_S = 120.0  # of torch, on a machine that is busy
DUMP = """Thread 0x00007f976fdeb6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/queue.py", line 171 in get
  File "/job/train.py", line 37 in _upload

Current thread 0x00007f9770855b80 (most recent call first):
  File "/job/train.py", line 45 in on_step_end
  File "/job/train.py", line 66 in <module>
"""
INNER = """
import json, os
print(json.dumps({"pid": os.getpid(), "pid_namespace": os.stat("/proc/self/ns/pid").st_ino}), flush=True)
input()
"""
REFUSES = "#!/bin/sh\necho 'Error: Permission Denied' >&2\nexit 1\n"


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A py-spy that behaves as where the kernel says no."""
    program = tmp_path / "py-spy"
    program.write_text(REFUSES)
    program.chmod(0o700)
    monkeypatch.setenv("NSADIAG_PY_SPY", str(program))
    return program


@pytest.mark.slow
def test_verdicts_hold_without_py_spy(tmp_path: Path) -> None:
    """Of what the scripts promise: class and ranks of 95 in 100, the line of 90."""
    wrong: list[str] = []
    known = [promise for promise in promises() if promise.name in RECORDED]
    for promise in known:
        run = hide(unpack(archive_of(promise.name), tmp_path / promise.name))
        verdict = judge(load_cell(run.path)).to_json()
        assert uncited(run, verdict) == [], promise.name
        wrong += [miss.split()[0] for miss in missed(promise, verdict)]
    with_line = sum(bool(promise.codes) for promise in known)
    assert wrong.count("class") <= 0.05 * len(known), wrong
    assert wrong.count("ranks") <= 0.05 * len(known), wrong
    assert wrong.count("line") <= 0.1 * with_line, wrong


def test_a_dump_of_faulthandler_is_read_as_stacks(tmp_path: Path) -> None:
    capture = RunDir(path=tmp_path).rank(0).capture(1)
    make_private_dir(capture.path)
    write_private(capture.traceback, DUMP)
    write_json(capture.proc, {"t_mono_ns": 1, "pid": 4711, "state": "S", "cpu_s": 1.0})
    aside, main = stacks_in(capture)
    assert (main.thread_name, main.os_thread_id, main.owns_gil) == ("MainThread", 4711, False)
    assert [frame.line for frame in main.frames] == [45, 66]
    assert aside.frames[-1] == StackFrame(name="_upload", filename="/job/train.py", line=37)


def test_speedscope_shows_the_stacks_that_faulthandler_wrote(tmp_path: Path) -> None:
    run = hide(unpack(archive_of("local_lock_deadlock_dropped_record"), tmp_path))
    shown = json.loads(render_speedscope(load_report(run.path)))
    assert [profile["name"] for profile in shown["profiles"]] == [
        "main threads of 2 ranks",
        "rank 0",
        "rank 1",
    ]
    assert "on_step_end" in {frame["name"] for frame in shown["shared"]["frames"]}


def test_a_thread_in_c_keeps_the_lock_where_python_does_not_answer(tmp_path: Path) -> None:
    capture = RunDir(path=tmp_path).rank(0).capture(1)
    make_private_dir(capture.path)
    write_private(capture.traceback, DUMP)
    write_json(capture.gaps, [{"capture": "python", "gap": "no answer in 2 s"}])
    assert [t.owns_gil for t in stacks_in(capture)] == [False, True]


def test_stacks_of_py_spy_are_taken_first(tmp_path: Path) -> None:
    capture = RunDir(path=tmp_path).rank(0).capture(1)
    make_private_dir(capture.path)
    write_private(capture.traceback, DUMP)
    write_json(capture.py_spy, [{"thread_name": "MainThread", "frames": []}])
    assert stacks_in(capture) == (PythonThread(thread_name="MainThread", frames=()),)


def test_a_verdict_on_a_rank_that_nobody_could_see_is_less_sure(tmp_path: Path) -> None:
    run = unpack(archive_of("local_lock_deadlock_dropped_record"), tmp_path)
    for capture in (c for rank in run.ranks() for c in rank.captures()):
        capture.py_spy.unlink(missing_ok=True)
        capture.native.unlink(missing_ok=True)
    verdict = judge(load_cell(run.path))
    assert (verdict.guilty_ranks, verdict.confidence) == ((1,), 0.6)
    assert uncited(run, verdict.to_json()) == []


@pytest.mark.parametrize(("scope", "asked"), [("0\n", False), ("2\n", False), (None, False)])
def test_consent_is_given_only_where_the_kernel_asks_for_it(
    scope: str | None, asked: bool, tmp_path: Path
) -> None:
    file = tmp_path / "ptrace_scope"
    if scope is not None:
        file.write_text(scope)
    assert ptracer.allow(file) is asked


def test_consent_that_the_kernel_does_not_know_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "ptrace_scope"
    file.write_text("1\n")
    # A kernel without Yama refuses the call.
    assert ptracer.allow(file) is permission.PTRACE_SCOPE.exists()


def test_doctor_says_what_verdicts_will_lack() -> None:
    refused = Check(name=STACKS, status="missing", detail="py-spy: Permission Denied", essential=True)
    works = Check(name=FAULTHANDLER, status="works", detail="stacks of all threads")
    stacks, _ = with_faulthandler([refused, works])
    assert (stacks.status, stacks.stands_in_the_way) == ("limited", False)
    assert "verdicts will lack native frames" in stacks.detail
    assert with_faulthandler([refused]) == [refused]


def test_py_spy_is_found_where_its_package_brought_it() -> None:
    assert os.access(find_py_spy(), os.X_OK)


def test_attach_names_what_forbids_it(jobs: Jobs) -> None:
    refused = jobs.run("attach", "1")
    assert refused.returncode in (2, 3), refused.stdout
    assert "you are 0" not in refused.stderr
    if refused.returncode == 3:
        assert "nsadiag doctor --pid 1" in refused.stderr


def test_the_line_is_right_where_py_spy_is_refused(jobs: Jobs, refusing: Path) -> None:
    """A job of its own."""
    script = script_of("local_lock_deadlock_dropped_record")
    done = jobs.run("run", "--json", "--", *FORKING, "2", script)
    verdict = json.loads(done.stdout)["verdict"]
    assert (verdict["class"], verdict["guilty_ranks"]) == ("local_lock_deadlock", [1])
    assert (verdict["where"]["line"], verdict["peers_at"]["line"]) == (45, 66)
    assert any("Permission Denied" in gap for gap in verdict["gaps"])


def test_a_process_of_a_namespace_below_ours_is_found_by_its_number_there() -> None:
    inside = subprocess.Popen(
        ["unshare", "-pf", "--mount-proc", sys.executable, "-c", INNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert inside.stdin and inside.stdout and inside.stderr
    line = inside.stdout.readline()
    try:
        if not line:
            pytest.skip(f"no pid namespace can be made here: {inside.stderr.read().strip()}")
        meta = json.loads(line)
        found = pid_of(meta)
        assert meta["pid"] == 1
        assert found not in (0, 1)
        assert Path(f"/proc/{found}/cmdline").read_bytes().split(b"\0")[-2] == INNER.encode()
        assert pid_of({"pid": os.getpid()}) == os.getpid()
    finally:
        inside.communicate("\n")


def test_where_py_spy_is_refused_the_rank_itself_says_where_it_is(refusing: Path, tmp_path: Path) -> None:
    with patients(sys.executable, tmp_path) as (_, with_torch):
        with_torch.report(IMPORT_S)
        stacks = NonblockingStacks(lambda rank: with_torch.target().socket or tmp_path)
        for _ in range(2):
            threads = stacks.at(0, with_torch.pid, with_locals=True)
            assert [t.thread_name for t in threads].count("MainThread") == 1
        assert not stacks.shows_variables(with_torch.pid)


def test_a_rank_that_does_not_answer_is_not_asked_again(refusing: Path, tmp_path: Path) -> None:
    asked: list[int] = []

    def socket_of(rank: int) -> Path:
        asked.append(rank)
        return tmp_path / "none.sock"

    stacks = NonblockingStacks(socket_of)
    for _ in range(3):
        with pytest.raises(CaptureError):
            stacks.at(0, os.getpid())
    assert asked == [0]


def test_a_py_spy_that_is_named_and_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSADIAG_PY_SPY", "/nonexistent/py-spy")
    with pytest.raises(CaptureError, match="NSADIAG_PY_SPY is /nonexistent/py-spy"):
        find_py_spy()
