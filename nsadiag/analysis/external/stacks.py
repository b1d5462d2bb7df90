"""Stacks as text: what `py-spy dump` prints, as threads in the form of its JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from nsadiag.analysis.ingest.messages.tools.debuggers import HEADING
from nsadiag.evidence.documents.python_stacks import MAIN_THREAD, PythonThread, StackFrame, Threads
from nsadiag.evidence.documents.types import fitting
from nsadiag.evidence.documents.values import rows_of
from nsadiag.evidence.messages import NativeStack
from nsadiag.evidence.stacks import with_a_main_thread

PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.*)$", re.MULTILINE)
RANK_IN_COMMAND = re.compile(r"--(?:local[-_])?rank[= ](\d+)|(?:^|\s)(?:RANK|SLURM_PROCID)=(\d+)(?=\s|$)")
MOST_HEADING = 500
THREAD = re.compile(
    r'^Thread (?P<id>0x[0-9a-fA-F]+|\d+)(?: \((?P<state>[^)]*)\))?(?:: "(?P<name>[^"]*)")?', re.MULTILINE
)
FRAME = re.compile(r"^ {4}(?P<name>\S.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*$")
# py-spy shortens paths to what stands behind an entry of sys.path.
LIBRARIES = frozenset({
    "torch", "numpy", "pandas", "lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed", "megatron",
    "ray", "uvicorn", "uvloop", "starlette", "fastapi", "anyio", "aiohttp", "tornado", "gunicorn", "grpc", "IPython", "ipykernel",
    "tqdm", "datasets", "peft", "wandb", "apex", "xformers", "flash_attn", "transformer_engine", "torchrun",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProcessStacks:
    """One process as it was seen once."""

    pid: int | None
    rank: int | None  # where its command line tells
    threads: Threads
    native: str  # the text, where it holds native frames


def from_py_spy(text: str) -> Iterator[ProcessStacks]:
    """Stacks of each process in the output of `py-spy dump`, one after another."""
    begins = list(PROCESS.finditer(text))
    ends = [match.start() for match in begins[1:]] + [len(text)]
    for begin, end in zip(begins, ends, strict=True):
        part = text[begin.end() : end]
        threads = _py_spy_threads(part)
        rank = RANK_IN_COMMAND.search(begin["command"]) or _heading(text[: begin.start()])
        if threads:
            yield ProcessStacks(
                pid=int(begin["pid"]),
                rank=int(next(filter(None, rank.groups()))) if rank else None,
                threads=threads,
                native=part if _has_native(threads) else "",
            )


def _heading(before: str) -> re.Match[str] | None:
    """The rank in a line of somebody's own above a process."""
    last = before[-MOST_HEADING:].rstrip("\n").rpartition("\n")[2]
    return HEADING.match(last)


def _py_spy_threads(text: str) -> Threads:
    found: list[tuple[PythonThread, list[StackFrame]]] = []
    for line in text.splitlines():
        thread, frame = THREAD.match(line), FRAME.match(line)
        if thread:
            state = thread["state"] or ""
            row = PythonThread(
                thread_name=thread["name"], active="active" in state, owns_gil="gil" in state, frames=()
            )
            found.append((row, []))
        elif frame and found:
            file, line_number = whole_path(frame["file"]), int(frame["line"] or 0)
            found[-1][1].append(StackFrame(name=frame["name"], filename=file, line=line_number))
    return with_a_main_thread([replace(row, frames=tuple(frames)) for row, frames in found if frames])


def _has_native(threads: Threads) -> bool:
    return any(".so" in f.filename or not f.line for t in threads for f in t.frames)


def from_debugger(stacks: Iterable[NativeStack]) -> Threads:
    """Threads of one process of which the debugger showed Python's frames."""
    return with_a_main_thread([
        PythonThread(
            thread_name=MAIN_THREAD if each.thread == 1 else None,
            frames=tuple(
                StackFrame(name=f.function, filename=whole_path(f.file), line=f.line) for f in each.frames[::-1]
            ),
        )
        for each in stacks
        if each.frames
    ])  # fmt: skip


def whole_path(file: str) -> str:
    """A shortened path of a library with what was cut off, or a stand-in for it, so that it is not taken for the user's."""
    top = file.partition("/")[0].removesuffix(".py")
    if file.startswith(("/", "<")) or ".so" in file:
        return file
    if top in LIBRARIES:
        return f"/lib/python3/site-packages/{file}"
    return f"/usr/lib/python3.{sys.version_info[1]}/{file}" if top in sys.stdlib_module_names else file


def from_json(text: str) -> Threads:
    """Threads of `py-spy dump --json`. Raises ValueError if it is something else."""
    document = json.loads(text)
    if not isinstance(document, list):
        raise ValueError("no list of threads")
    threads = []
    for thread in document:
        frames = thread.get("frames") if isinstance(thread, dict) else None
        if not isinstance(frames, list):
            raise ValueError("a thread without frames")
        kept = [f for f in frames if isinstance(f, dict) and isinstance(f.get("filename"), str)]
        threads.append(
            {
                **thread,
                "frames": [{**f, "name": str(f.get("name")), "line": _line(f.get("line"))} for f in kept],
            }
        )
    return with_a_main_thread(rows_of(PythonThread, fitting("py_spy.json", threads, [])))


def _line(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
