"""Runs a script and notes each line of the user's that it executes, in a file that outlives a SIGKILL.

`python executed.py NOTES SCRIPT ARGS...`: one line `number` a first execution in NOTES.<rank>; what argparse made of
the command line, as JSON in NOTES.<rank>.options.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import threading
from types import FrameType
from typing import Any


def note_lines(script: str, notes: str) -> None:
    """From here on, in all threads; other files than the script are not looked into."""
    file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    seen: set[int] = set()

    def line(frame: FrameType, event: str, _: Any) -> Any:
        number = frame.f_lineno
        if event == "line" and number not in seen:
            seen.add(number)
            os.write(file, b"%d\n" % number)
        return line

    def call(frame: FrameType, _event: str, _: Any) -> Any:
        return line(frame, "line", None) if frame.f_code.co_filename == script else None

    threading.settrace(call)
    sys.settrace(call)


def note_options(notes: str) -> None:
    """Each namespace that argparse returns, if it is made of plain values."""
    original = argparse.ArgumentParser.parse_args

    def parse_args(self: Any, *args: Any, **named: Any) -> Any:
        found = original(self, *args, **named)
        try:
            text = json.dumps(vars(found))
        except (TypeError, ValueError):
            text = "null"
        with open(notes, "a") as file:  # noqa: PTH123 - as quick to start as can be
            file.write(text + "\n")
        return found

    argparse.ArgumentParser.parse_args = parse_args  # type: ignore[method-assign]


def main() -> None:
    notes, script = sys.argv[1:3]
    notes = f"{notes}.{os.environ.get('RANK', '0')}"
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as Python does it
    note_options(f"{notes}.options")
    note_lines(script, notes)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
