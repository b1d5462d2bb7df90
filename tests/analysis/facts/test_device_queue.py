"""A backward on a GPU runs in a thread of torch's own: it is read as one stack with the main thread that waits for it."""

from __future__ import annotations

from pathlib import Path

from support.recordings.golden import archive_of, unpack

from nsadiag.agent.stillness.judgement import judge
from nsadiag.agent.stillness.motion import motions
from nsadiag.analysis.facts.device_queue import computes_before
from nsadiag.analysis.load import load_cell
from nsadiag.evidence.documents.kernel import KernelProcess, KernelThread
from nsadiag.evidence.documents.python_stacks import (
    MAIN_THREAD,
    PythonThread,
    StackFrame,
    as_one_stack,
    frames_of_main,
)
from nsadiag.evidence.layout import read_json
from nsadiag.evidence.stacks import process_in, stacks_in

WAITS = StackFrame(name="_engine_run_backward", filename="torch/autograd/graph.py", line=869)
TRAINS = StackFrame(name="main", filename="train.py", line=20)
HOOK = StackFrame(name="hook", filename="train.py", line=5)
MAIN = PythonThread(frames=(WAITS, TRAINS), os_thread_id=1, thread_name=MAIN_THREAD)
NAMES = {1: "python", 2: "pt_autograd_0", 3: "python"}


def name_of(tid: int) -> str:
    return NAMES.get(tid, "")


def test_the_main_thread_goes_on_in_the_thread_that_runs_its_backward() -> None:
    runs = PythonThread(frames=(HOOK,), os_thread_id=2, owns_gil=True)
    beside = PythonThread(frames=(HOOK,), os_thread_id=3, thread_name="logger")
    main, other = as_one_stack((runs, MAIN, beside), name_of)
    assert (main.frames, main.owns_gil, main.os_thread_id) == ((HOOK, WAITS, TRAINS), True, 1)
    assert other is beside


def test_no_other_thread_is_taken_for_it() -> None:
    idle = PythonThread(frames=(), os_thread_id=2)
    beside = PythonThread(frames=(HOOK,), os_thread_id=3)
    assert as_one_stack((idle, MAIN, beside), name_of) == (idle, MAIN, beside)
    # A main thread that does not wait for a backward has a stack of its own.
    trains = PythonThread(frames=(TRAINS,), os_thread_id=1, thread_name=MAIN_THREAD)
    runs = PythonThread(frames=(HOOK,), os_thread_id=2)
    assert as_one_stack((trains, runs), name_of) == (trains, runs)


def test_the_kernel_is_asked_about_the_same_thread() -> None:
    threads = (
        KernelThread(tid=7, state="S", cpu_s=9.0, name="python", wchan="futex_do_wait"),
        KernelThread(tid=8, state="R", cpu_s=2.0, name="pt_autograd_0"),
    )
    process = KernelProcess(
        t_mono_ns=1, pid=7, state="S", cpu_s=11.0, syscall="202 0x1", wchan="futex_do_wait", threads=threads
    )
    seen = process.seen_from(8)
    assert (seen.pid, seen.state, seen.wchan, seen.syscall) == (7, "R", None, None)
    assert seen.main is not None and seen.main.cpu_s == 2.0
    assert process.seen_from(7) is process.seen_from(99) is process


def test_a_hook_that_hangs_is_found_in_that_thread(tmp_path: Path) -> None:
    run = unpack(archive_of("local_lock_deadlock_gradient_hook"), tmp_path)
    look = read_json(run.watch)["looks"][-1]
    capture = run.rank(1).capture(look["second"])
    names = [frame.name for frame in frames_of_main(stacks_in(capture))]
    assert names.index("Throttle.__call__") < names.index("_engine_run_backward") < names.index("main")
    process = process_in(capture)
    assert process and process.main and process.main.name.startswith("pt_autograd")
    moved = motions(run.ranks(), (look["first"], look["second"]), {}, {0, 1})
    assert judge(moved)[0] == "still"
    assert [m.rank for m in moved if m.waits_for_peers] == [0]


def test_a_collective_that_the_device_has_not_come_to_stands_behind_a_kernel(tmp_path: Path) -> None:
    unpack(archive_of("gpu_kernel_hang_in_backward"), tmp_path)
    assert [computes_before(rank) for rank in load_cell(tmp_path).ranks] == [False, True]
