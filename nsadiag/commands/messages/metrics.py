"""`--metrics FILE`: the state of every rank as OpenMetrics text, written anew every few seconds."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nsadiag.errors import UsageError
from nsadiag.evidence.layout import RunDir, replace_private

if TYPE_CHECKING:
    from nsadiag.analysis.snapshot import RankNow
    from nsadiag.evidence.records import Verdict

EVERY_S = 5.0
AT_MOST_SHARE = 0.05  # of the time, should reading many ranks take long
RUNNING = "running"
# Name, type, unit suffix of the sample, help.
FAMILIES = (
    ("nsadiag_steps", "counter", "_total", "Optimizer steps done; iterations where no optimizer was seen"),
    ("nsadiag_steps_per_second", "gauge", "", "Steps a second over the last half minute"),
    ("nsadiag_quiet_seconds", "gauge", "", "Seconds since the rank's newest event"),
    ("nsadiag_peer_wait_seconds", "counter", "_total", "Seconds that peers have waited for this rank"),
    ("nsadiag_waited_for_now_seconds", "gauge", "", "Seconds that peers have waited for this rank now; 0: nobody waits"),
)  # fmt: skip
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True, kw_only=True)
class MetricsFile:
    """One file for one run."""

    path: Path
    run: RunDir
    name: str

    def write(self, verdict: Verdict | None = None) -> None:
        """All of it, in one step. Raises OSError."""
        text = "\n".join([*self._ranks(), *self._outcome(verdict), "# EOF", ""])
        replace_private(self.path, text.encode(errors="replace"), readers=readers_of(self.path))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Within the block it is written every few seconds; what fails there costs nothing but the metrics."""
        over = threading.Event()
        thread = threading.Thread(target=self._keep, args=(over,), name="nsadiag-metrics", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(EVERY_S)

    def _keep(self, over: threading.Event) -> None:
        wait_s = 0.2
        while not over.wait(wait_s):
            began = time.monotonic()
            with contextlib.suppress(OSError, ValueError):  # a ring that is being made, a full disk
                self.write()
            wait_s = max(EVERY_S, (time.monotonic() - began) / AT_MOST_SHARE)

    def _ranks(self) -> Iterator[str]:
        from nsadiag.analysis.snapshot import ranks_now

        yield from rank_lines([(self.name, ranks_now(self.run))])

    def _outcome(self, verdict: Verdict | None) -> Iterator[str]:
        yield "# TYPE nsadiag_outcome gauge"
        yield "# HELP nsadiag_outcome 1 for the outcome that the run has now"
        said, cls = (verdict.outcome, verdict.cls) if verdict else (RUNNING, "")
        yield f'nsadiag_outcome{{{self._run_label},outcome="{said}",class="{escaped(cls)}"}} 1'
        if verdict:
            yield "# TYPE nsadiag_guilty_rank gauge"
            yield "# HELP nsadiag_guilty_rank 1 for each rank that the verdict names"
            for rank in verdict.guilty_ranks:
                yield f'nsadiag_guilty_rank{{{self._run_label},rank="{rank}"}} 1'

    @property
    def _run_label(self) -> str:
        return f'run="{escaped(self.name)}"'


def rank_lines(runs: Iterable[tuple[str, Iterable[RankNow]]]) -> Iterator[str]:
    """The families of every rank; `runs`: name and ranks."""
    values: dict[str, list[tuple[str, int, float | None]]] = {name: [] for name, *_ in FAMILIES}
    for run, ranks in runs:
        for r in ranks:
            found = (float(r.step), r.rate_per_s, r.quiet_s, r.waited_for_total_s, r.waited_for_s)
            for rows, value in zip(values.values(), found, strict=True):
                rows.append((escaped(run), r.rank, value))
    for name, kind, suffix, words in FAMILIES:
        yield from (f"# TYPE {name} {kind}", f"# HELP {name} {words}")
        for run, rank, value in values[name]:
            if value is not None:
                yield f'{name}{suffix}{{run="{run}",rank="{rank}"}} {value:.6g}'


def check(path: Path) -> None:
    """Raises UsageError for a file that cannot be written."""
    if path.is_dir() or not path.parent.is_dir():
        what = "is a directory" if path.is_dir() else f"lies in no directory: there is no {path.parent}"
        raise UsageError(f"--metrics: {path} {what}", "give a file, as /var/lib/node_exporter/nsadiag.prom")


def readers_of(path: Path) -> int:
    """The bits by which others may read a file that is there already: of a collector of metrics that is another user, say."""
    try:
        seen = path.lstat()
    except OSError:
        return 0
    is_own = stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid()
    return seen.st_mode & (stat.S_IRGRP | stat.S_IROTH) if is_own else 0


def escaped(value: str) -> str:
    """As the value of a label."""
    return value.encode("utf-8", "replace").decode().translate(ESCAPES)
