"""Looks at a process, of which a test says only what matters to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nsadiag.evidence.documents.kernel import KernelProcess
from nsadiag.evidence.documents.python_stacks import PythonThread, StackFrame
from nsadiag.evidence.documents.training import Sample
from nsadiag.evidence.documents.values import value_of

REST = {"state": "S", "cpu_s": 0.0}


def process(document: Mapping[str, Any] | None = None, **more: Any) -> KernelProcess:
    """The kernel's view of it, as proc.json would say."""
    given = {"t_mono_ns": 0, "pid": 1, **REST, **(document or {}), **more}
    rows = {
        name: [{**REST, **row} for row in given[name]] for name in ("children", "threads") if name in given
    }
    spawner = {"spawner": {"pid": 1, **given["spawner"]}} if given.get("spawner") else {}
    return value_of(KernelProcess, {**given, **rows, **spawner})


def sample(*frames: Iterable[Any]) -> Sample:
    """A sample of the main thread's stack: file, line and function, innermost first."""
    return value_of(Sample, {"t_mono_ns": 1, "frames": frames})


def thread(frames: Iterable[tuple[str, str, int]], **more: Any) -> PythonThread:
    """A thread with these frames: function, file and line, innermost first."""
    return PythonThread(
        frames=tuple(StackFrame(name=name, filename=file, line=line) for name, file, line in frames), **more
    )
