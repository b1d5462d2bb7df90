"""Rows of a lane, letters of calls: known without the analysis, which a page that is shown again does not need."""

from __future__ import annotations

# A letter for each state of a call, so that a picture of calls is one in plain text too.
LETTERS = {
    "done": "·",
    "waits": "W",
    "other": "X",
    "issued": "i",
    "not issued": "-",
    "unknown": "?",
    "silent": " ",
}
# Top and height of each kind within a lane, so that colour is not the only difference.
ROWS = {
    "phase": (0, 24),
    "forward": (1, 8),
    "backward": (7, 8),
    "peers": (9, 4),
    "optimizer": (3, 10),
    "data": (6, 4),
    "file": (1, 14),
    "call": (17, 6),
}
