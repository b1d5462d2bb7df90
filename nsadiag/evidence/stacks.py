"""Stacks of one capture, as py-spy's JSON has them: by py-spy, or by faulthandler where it may not look.

Standard library only.
"""

from __future__ import annotations

import re
from typing import Any

from nsadiag.evidence.blocking import lets_go
from nsadiag.evidence.documents.files import tail_of
from nsadiag.evidence.documents.types import Unfit
from nsadiag.evidence.layout import CaptureDir, read_json

FAULT_THREAD = re.compile(
    r"^(?:\[[^\]]*\]:? ?)?(?P<current>Current thread|Thread) (?P<id>0x[0-9a-fA-F]+)(?: \[(?P<name>[^\]]*)\])? \(most recent call first\):"
)
FAULT_FRAME = re.compile(
    r'^(?:\[[^\]]*\]:? ?)?  File "(?P<file>[^"]+)", line (?P<line>\d+|\?\?\?) in (?P<name>.+?)\s*$'
)
UNNAMED = "(unnamed)"
MOST_BYTES = 4 * 1024 * 1024

Threads = list[dict[str, Any]]


def stacks_in(capture: CaptureDir, gaps: list[Unfit] | None = None) -> Threads:
    """All threads; empty where neither py-spy nor faulthandler could show them."""
    threads: Threads = read_json(capture.py_spy, [], gaps)
    if threads:
        return threads
    text = tail_of(capture.traceback, MOST_BYTES)
    return _filled_in(from_faulthandler(text), capture)


def _filled_in(threads: Threads, capture: CaptureDir) -> Threads:
    """With what faulthandler does not say: some name for each thread, the main one's number, and who has the GIL.

    Where Python was asked and did not answer, somebody keeps it: the only thread that is in no wait which lets go of it.
    """
    silent = any(row.get("capture") == "python" for row in read_json(capture.gaps, []))
    keepers = [t for t in threads if not lets_go(t["frames"][0]["filename"])] if silent else []
    pid = read_json(capture.proc, {}).get("pid", 0)
    return [
        {
            **thread,
            "thread_name": thread["thread_name"] or UNNAMED,
            "os_thread_id": pid if thread["thread_name"] == "MainThread" else 0,
            "owns_gil": len(keepers) == 1 and thread is keepers[0],
        }
        for thread in threads
    ]


def from_faulthandler(text: str) -> Threads:
    """The stacks of its last dump of all threads; it lists the main thread last."""
    runs: list[Threads] = [[]]
    inside = False
    for line in text.splitlines():
        thread, frame = FAULT_THREAD.match(line), FAULT_FRAME.match(line)
        if thread:
            runs[-1].append(
                {
                    "thread_name": thread["name"],
                    "thread_id": int(thread["id"], 16),
                    "active": False,
                    "owns_gil": False,
                    "frames": [],
                }
            )
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
    return with_a_main_thread(last)


def with_a_main_thread(threads: Threads) -> Threads:
    """Named so where nobody did: the one that began in a module, else the last."""
    if not threads or any(t.get("thread_name") == "MainThread" for t in threads):
        return threads
    begun = [t for t in threads if t["frames"] and t["frames"][-1]["name"] == "<module>"]
    main = (begun or threads)[-1]
    return [{**t, "thread_name": "MainThread"} if t is main else t for t in threads]
