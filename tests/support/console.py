"""The command line as a script sees it."""

from __future__ import annotations

import os
import subprocess
import sys


def piped(*arguments: str, **more: str) -> list[str]:
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | more
    done = subprocess.run(
        [sys.executable, "-m", "nsadiag", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()
