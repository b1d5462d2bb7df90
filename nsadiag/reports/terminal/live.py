"""The progress of a running matrix on stderr: a live view on a terminal, a line a cell elsewhere."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol

from rich.console import Group, RenderableType
from rich.live import Live

from nsadiag.evidence.phrases import count
from nsadiag.evidence.records import Verdict
from nsadiag.printing import ascii_only, clean, one_line
from nsadiag.reports.facts import headline
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text
from nsadiag.reports.words import duration, mark_of, roughly, tally

Clock = Callable[[], float]

REFRESH_PER_S = 4
FAILURES_KEPT = 5
BAR_WIDTH = 24


class MatrixProgress(Protocol):
    """Told of every cell as it starts and ends; a context manager around the whole matrix."""

    def start(self, matrix_name: str, cell_ids: Sequence[str]) -> None: ...
    def cell_started(self, cell_id: str) -> None: ...
    def cell_finished(self, cell_id: str, verdict: Verdict | None, wall_s: float) -> None: ...
    def foretell(self, seconds: Mapping[str, float]) -> None: ...
    def note(self, text: str) -> None: ...
    def __enter__(self) -> MatrixProgress: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def matrix_progress(console: Screen) -> MatrixProgress:
    """The live view where the console is a terminal that can redraw lines, plain lines elsewhere."""
    if console.is_terminal and not console.is_dumb_terminal and not console.options.ascii_only:
        return LiveProgress(console)
    return PlainProgress(console)


class Tally:
    """The state behind both views: the outcomes of the finished cells and the time left for the others."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.name = ""
        self.cell_ids: Sequence[str] = ()
        self.marks: dict[str, str] = {}
        self.running: dict[str, float] = {}
        self.walls: list[float] = []
        self.predicted: Mapping[str, float] = {}
        self.ran_s = 0.0  # of cells that ended since the start, one beside another or not
        self.started_at = clock()

    def start(self, name: str, cell_ids: Sequence[str]) -> None:
        self.name, self.cell_ids, self.started_at = clean(name), tuple(cell_ids), self.clock()

    def finish(self, cell_id: str, verdict: Verdict | None, wall_s: float) -> None:
        started = self.running.pop(cell_id, None)
        self.ran_s += 0.0 if started is None else self.clock() - started
        self.marks[cell_id] = verdict.outcome if verdict else "unknown"
        self.walls.append(wall_s)

    @property
    def elapsed_s(self) -> float:
        return self.clock() - self.started_at

    @property
    def eta_s(self) -> float | None:
        """The predicted or average time of the remaining cells, less the time that the running ones have had.

        Divided by as many as have run side by side so far. None before two have ended.
        """
        if len(self.walls) < 2:
            return None
        mean = sum(self.walls) / len(self.walls)
        seconds = {i: self.predicted.get(i, mean) for i in self.cell_ids if i not in self.marks}
        had = sum(min(self.clock() - at, seconds.get(i, mean)) for i, at in self.running.items())
        side_by_side = self.ran_s / self.elapsed_s if self.elapsed_s else 1.0
        return max(0.0, sum(seconds.values()) - had) / max(side_by_side, 1.0)

    def time_of(self, cell_id: str) -> str:
        """The elapsed time of a running cell, `3 s`, with its prediction if there is one, `3 of about 12 s`."""
        ran_s, whole_s = self.clock() - self.running[cell_id], self.predicted.get(cell_id)
        if whole_s is None or whole_s < 1:
            return roughly(ran_s)
        return f"{roughly(ran_s)} of about {roughly(whole_s)}"

    def sentence(self) -> str:
        """`34 healthy, 2 hung`."""
        return tally(dict(Counter(self.marks.values())))


class PlainProgress:
    """One line a cell, for logs and pipes: whole lines, never redrawn."""

    def __init__(self, console: Screen, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._tally = Tally(clock)

    def start(self, matrix_name: str, cell_ids: Sequence[str]) -> None:
        self._tally.start(matrix_name, cell_ids)
        self.note(f"{matrix_name}: {count(len(cell_ids), 'cell')}")

    def cell_started(self, cell_id: str) -> None:
        self._tally.running[cell_id] = self._tally.clock()

    def cell_finished(self, cell_id: str, verdict: Verdict | None, wall_s: float) -> None:
        self._tally.finish(cell_id, verdict, wall_s)
        total = len(self._tally.cell_ids)
        place = f"[{len(self._tally.marks):>{len(str(total))}}/{total}]"
        self._say(f"{place} {ending(cell_id, verdict, wall_s)}")

    def foretell(self, seconds: Mapping[str, float]) -> None:
        """Nothing is drawn that could show it."""

    def note(self, text: str) -> None:
        self._say(one_line(text))

    def _say(self, text: str) -> None:
        line = ascii_only(text) if self._console.options.ascii_only else text
        self._console.print(line, soft_wrap=True)

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tally.cell_ids:
            took = duration(self._tally.elapsed_s)
            self.note(f"{self._tally.name}: {self._tally.sentence() or 'no cell ended'} in {took}")


class LiveProgress:
    """A few lines redrawn in place: counts, a strip of letters, what runs now, what failed."""

    def __init__(self, console: Screen, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._tally = Tally(clock)
        self._failures: deque[Text] = deque(maxlen=FAILURES_KEPT)
        self._last: Text | None = None
        # rich redraws from a thread of its own while the engine reports from another.
        self._lock = threading.Lock()
        self._live = Live(get_renderable=self._view, console=console, refresh_per_second=REFRESH_PER_S)

    def start(self, matrix_name: str, cell_ids: Sequence[str]) -> None:
        with self._lock:
            self._tally.start(matrix_name, cell_ids)

    def cell_started(self, cell_id: str) -> None:
        with self._lock:
            self._tally.running[cell_id] = self._tally.clock()

    def cell_finished(self, cell_id: str, verdict: Verdict | None, wall_s: float) -> None:
        style = mark_of(verdict.outcome if verdict else "unknown").style
        line = _line(ending(cell_id, verdict, wall_s), style)
        with self._lock:
            self._tally.finish(cell_id, verdict, wall_s)
            if verdict and verdict.outcome == "healthy":
                self._last = line
            else:
                self._failures.append(line)

    def foretell(self, seconds: Mapping[str, float]) -> None:
        """By cell, of those to come and those that run."""
        with self._lock:
            self._tally.predicted = dict(seconds)

    def note(self, text: str) -> None:
        """Printed above the live lines, where it stays."""
        self._console.print(one_line(text))

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _view(self) -> RenderableType:
        with self._lock:
            lines = [self._header(), self._strip(), *self._now(), *self._recent()]
        # A view taller than the terminal cannot be redrawn in place: it would scroll.
        return Group(*lines[: max(1, self._console.height - 1)])

    def _header(self) -> Text:
        done, total = len(self._tally.marks), len(self._tally.cell_ids)
        filled = BAR_WIDTH * done // total if total else 0
        header = Text(no_wrap=True, overflow="ellipsis")
        header.append(f"{self._tally.name}  ", style="bold")
        header.append("━" * filled, style="green").append("━" * (BAR_WIDTH - filled), style="bright_black")
        header.append(f"  {done}/{total}  {roughly(self._tally.elapsed_s)}")
        if self._tally.eta_s is not None and done < total:
            header.append(f", about {roughly(self._tally.eta_s)} left", style="dim")
        return header

    def _strip(self) -> Text:
        """One letter a cell in order, as pytest shows its tests; of too many, the part in progress."""
        counts = self._tally.sentence()
        cell_ids, done = self._tally.cell_ids, len(self._tally.marks)
        room = max(8, self._console.width - len(counts) - 8)
        first = max(0, min(done - room // 2, len(cell_ids) - room))
        strip = Text("  ", no_wrap=True, overflow="ellipsis")
        for cell_id in cell_ids[first : first + room]:
            running = "running" if cell_id in self._tally.running else "pending"
            mark = mark_of(self._tally.marks.get(cell_id, running))
            strip.append(mark.letter, style=mark.style)
        return strip.append(f"  {counts}", style="dim")

    def _now(self) -> list[Text]:
        return [
            _line(f"R running {self._tally.time_of(cell_id):>8}  {one_line(cell_id)}", "blue")
            for cell_id in self._tally.running
        ]

    def _recent(self) -> list[Text]:
        return [*reversed(self._failures), *([self._last] if self._last else [])]


def ending(cell_id: str, verdict: Verdict | None, wall_s: float) -> str:
    """`H hung      2.10 s  layers=4: missing_rank, rank 1 of 2, 95 % sure: ...`; the columns line up."""
    mark = mark_of(verdict.outcome if verdict else "unknown")
    line = f"{mark.letter} {mark.word:<7} {duration(wall_s):>8}  {one_line(cell_id)}"
    if verdict is None:
        return f"{line}: no verdict"
    if verdict.outcome == "healthy":
        return line
    return f"{line}: {one_line(headline(verdict))}: {one_line(verdict.summary)}"


def _line(text: str, style: str) -> Text:
    return Text(f"  {text}", style=style, no_wrap=True, overflow="ellipsis")
