"""Jobs on a launcher that stays warm, watched and judged in the test itself: where a verdict is asked for, and no command."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

from nsadiag.agent.watching.state import WatchOptions
from nsadiag.analysis.verdict import judge_directory
from nsadiag.engines.local import WarmLauncher, run_warm
from nsadiag.evidence.layout import RunDir


class WarmJobs:
    """Starts them one after another; its launcher is started by the first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._launcher: WarmLauncher | None = None

    def judged(self, source: str, where: Path, *, size: int = 2, probes: str = "light") -> dict[str, Any]:
        """The verdict on ranks that run this as `where`/train.py; their run directory is `where`/run."""
        if self._launcher is None:
            self._launcher = WarmLauncher(self._folder / "launcher.log", preload=(), env={})
        script, run = where / "train.py", RunDir(path=where / "run")
        script.write_text(dedent(source))
        options = WatchOptions(timeout_s=300, patience_s=0)
        run_warm(self._launcher, [str(script)], run, options, world_size=size, probes=probes, cwd=where)
        found: dict[str, Any] = json.loads(json.dumps(judge_directory(run.path, live=True).to_json()))
        return found

    def close(self) -> None:
        if self._launcher is not None:
            self._launcher.close()
