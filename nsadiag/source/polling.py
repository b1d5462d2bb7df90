"""Names by which a polling loop shows what it polls: the outside, its own process, or its children."""

from __future__ import annotations

import re

ASKS_OUTSIDE = re.compile(
    r"exists|is_file|isfile|is_dir|\bstat\(|O_EXCL|\bopen\(|listdir|glob|iterdir|scandir|connect|recv|request|urlopen"
    r"|\.get\(|\.poll\(|\.check\(|store|Popen|subprocess|head_object|lock_?file|\.lock\b|flock",
    re.IGNORECASE,
)
ASKS_FOR_FILES = re.compile(
    r"exists|is_file|isfile|is_dir|isdir|\bstat\(|listdir|glob|iterdir|scandir|\bopen\("
)
ASKS_INSIDE = re.compile(r"is_set\(|\.empty\(|qsize|\.locked\(|get_nowait")
ASKS_CHILDREN = re.compile(r"\.poll\(|is_alive\(|exitcode|returncode|waitpid|pid_exists")
