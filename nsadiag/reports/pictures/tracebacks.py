"""Python's tracebacks as a person reads them: without nsadiag's own frames."""

from __future__ import annotations

import re

from nsadiag.evidence.user_code import is_ours

FRAME = re.compile(r'  File "(?P<file>[^"]*)", line ')


def without_ours(traceback: str) -> str:
    """Python's text of a traceback without nsadiag's frames, and the lines of code below them."""
    kept, ours = [], False
    for line in traceback.splitlines():
        frame = FRAME.match(line)
        # What is indented further belongs to the frame above it.
        ours = is_ours(frame["file"]) if frame else ours and line.startswith("    ")
        if not ours:
            kept.append(line)
    return "\n".join(kept)
