"""Stacks as text: what `py-spy dump` and faulthandler print, as threads in the form of py-spy's JSON."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.*)$", re.MULTILINE)
RANK_IN_COMMAND = re.compile(r"--(?:local[-_])?rank[= ](\d+)")
THREAD = re.compile(
    r'^Thread (?P<id>0x[0-9a-fA-F]+|\d+)(?: \((?P<state>[^)]*)\))?(?:: "(?P<name>[^"]*)")?', re.MULTILINE
)
FRAME = re.compile(r"^ {4}(?P<name>\S.*) \((?P<file>[^()]*?)(?::(?P<line>\d+))?\)\s*$")
FAULT_THREAD = re.compile(
    r"^(?:\[[^\]]*\]:? ?)?(?P<current>Current thread|Thread) 0x[0-9a-fA-F]+(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
FAULT_FRAME = re.compile(
    r'^(?:\[[^\]]*\]:? ?)?  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+?)\s*$'
)
# py-spy shortens paths to what stands behind an entry of sys.path.
LIBRARIES = frozenset({"torch", "numpy", "pandas", "lightning", "pytorch_lightning", "accelerate", "transformers", "deepspeed", "megatron"})  # fmt: skip

Threads = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class ProcessStacks:
    """One process as it was seen once."""

    pid: int | None
    rank: int | None  # where its command line tells
    threads: Threads
    native: str  # the text, where it holds native frames


def from_py_spy(text: str) -> Iterator[ProcessStacks]:
    """Of each process in what `py-spy dump` printed, one after another."""
    begins = list(PROCESS.finditer(text))
    ends = [match.start() for match in begins[1:]] + [len(text)]
    for begin, end in zip(begins, ends, strict=True):
        part = text[begin.end() : end]
        threads = _py_spy_threads(part)
        rank = RANK_IN_COMMAND.search(begin["command"])
        if threads:
            yield ProcessStacks(
                pid=int(begin["pid"]),
                rank=int(rank[1]) if rank else None,
                threads=threads,
                native=part if _has_native(threads) else "",
            )


def _py_spy_threads(text: str) -> Threads:
    threads: Threads = []
    for line in text.splitlines():
        thread, frame = THREAD.match(line), FRAME.match(line)
        if thread:
            state = thread["state"] or ""
            threads.append(
                {
                    "thread_name": thread["name"],
                    "active": "active" in state,
                    "owns_gil": "gil" in state,
                    "frames": [],
                }
            )
        elif frame and threads:
            threads[-1]["frames"].append(
                {
                    "name": frame["name"],
                    "filename": whole_path(frame["file"]),
                    "line": int(frame["line"] or 0),
                }
            )
    return _with_a_main_thread([t for t in threads if t["frames"]])


def _has_native(threads: Threads) -> bool:
    return any(".so" in f["filename"] or not f["line"] for t in threads for f in t["frames"])


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
                "frames": [{**f, "name": str(f.get("name")), "line": int(f.get("line") or 0)} for f in kept],
            }
        )
    return _with_a_main_thread(threads)


def from_faulthandler(text: str) -> Threads:
    """Of the last time that it wrote all threads; the main thread is the one it lists last."""
    runs: list[Threads] = [[]]
    inside = False
    for line in text.splitlines():
        thread, frame = FAULT_THREAD.match(line), FAULT_FRAME.match(line)
        if thread:
            runs[-1].append({"thread_name": None, "active": False, "owns_gil": False, "frames": []})
            inside = True
        elif frame and inside:
            number = frame["line"]
            runs[-1][-1]["frames"].append(
                {
                    "name": frame["name"],
                    "filename": frame["file"],
                    "line": int(number) if number.isdigit() else 0,
                }
            )
        elif line.strip() and inside and not frame:
            # Something else between two times.
            runs.append([])
            inside = False
    whole = [[t for t in run if t["frames"]] for run in runs]
    last = next((run for run in reversed(whole) if run), [])
    return _with_a_main_thread(last)


def _with_a_main_thread(threads: Threads) -> Threads:
    """Named so where nobody did: the one that began in a module, else the last."""
    if not threads or any(t.get("thread_name") == "MainThread" for t in threads):
        return threads
    begun = [t for t in threads if t["frames"] and t["frames"][-1]["name"] == "<module>"]
    main = (begun or threads)[-1]
    return [{**t, "thread_name": "MainThread"} if t is main else t for t in threads]
