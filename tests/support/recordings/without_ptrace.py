"""A recording as it would be where no process may be read: faulthandler's text in place of py-spy's documents."""

from __future__ import annotations

import shutil

from nsadiag.evidence.layout import CaptureDir, RunDir, read_json, write_json

MOST_FRAMES = 100
# What the kernel tells of another process to those alone who may trace it.
FOR_TRACERS = ("syscall", "kernel_stack")


def hide(run: RunDir) -> RunDir:
    """The same directory, with what faulthandler writes on Python 3.11: no names of threads, no classes, no native frames."""
    for rank in run.ranks():
        rank.samples.unlink(missing_ok=True)
        for capture in rank.captures():
            children = capture.path / "children"
            if children.exists():
                shutil.rmtree(children)
                _add_gap(capture, "children", "none of 2 child processes could be captured")
            capture.native.unlink(missing_ok=True)
            _hide_stacks(capture)
            _hide_kernel(capture)
    return run


def _hide_stacks(capture: CaptureDir) -> None:
    threads = read_json(capture.py_spy, [])
    if not capture.py_spy.exists():
        return
    capture.py_spy.unlink()
    _add_gap(capture, "py_spy", "py-spy: Permission denied")
    answers = read_json(capture.answers, {})
    if answers:
        write_json(capture.answers, {**answers, "gil_known": False, "gil_owner": None, "reads_as": "unknown"})
    # The newest first: the main thread comes last.
    ordered = sorted(threads, key=lambda t: t.get("thread_name") == "MainThread")
    capture.traceback.write_text("\n".join(_paragraph(n, t["frames"]) for n, t in enumerate(ordered)))


def _add_gap(capture: CaptureDir, name: str, gap: str) -> None:
    write_json(capture.gaps, [*read_json(capture.gaps, []), {"capture": name, "gap": gap, "seconds": 0.1}])


def _paragraph(number: int, frames: list[dict]) -> str:
    lines = [f"Thread 0x{0x7F0000000000 + number:016x} (most recent call first):"]
    for frame in frames[:MOST_FRAMES]:
        name = frame["name"].rpartition(".")[2]
        lines.append(f'  File "{frame["filename"]}", line {frame["line"]} in {name}')
    return "\n".join(lines) + "\n"


def _hide_kernel(capture: CaptureDir) -> None:
    found = read_json(capture.proc, {})
    if found:
        write_json(capture.proc, {k: v for k, v in found.items() if k not in FOR_TRACERS})
