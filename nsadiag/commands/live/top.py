"""`nsadiag top`: every rank's step, phase, line and rate, while the job runs."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from rich.live import Live

from nsadiag.analysis.snapshot import RATE_S, RankNow, has_moved, is_over, later, ranks_now, running_in
from nsadiag.commands.live.keys import keys
from nsadiag.commands.live.lines import Lines
from nsadiag.commands.live.screen import Row, View, header, in_order, job_of, screen_of, table_of
from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.evidence.phrases import count
from nsadiag.printing import ascii_only
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text

REFRESH_S, POLL_S = 1.0, 0.2
FRESH_S, STILL_S = 10.0, 600.0  # how old a look may be while nothing moves, and where nothing has for RATE_S
SHARE = 0.5  # of the time, that looking may take where there are very many ranks
ROOM = 5  # lines of a terminal that are not ranks
NOTHING = "nothing runs there at the moment: no rank has opened its recorder"

Cells = dict[str, list[RankNow]]


def look(directory: Path) -> Cells:
    """The ranks of what runs there, by the name of the run or cell. Raises UsageError."""
    return {run.path.name: list(ranks_now(run)) for run in running_in(directory)}


def as_json(cells: Cells) -> str:
    document = {
        "schema_version": SCHEMA_VERSION,
        "runs": [{"name": name, "ranks": [r.to_json() for r in ranks]} for name, ranks in cells.items()],
    }
    return json.dumps(document, indent=1)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The ranks as a look at whole rings found them, and its time."""

    cells: Cells
    at_s: float  # of time.monotonic()

    def until(self, now_s: float) -> Cells:
        """The same later on, where nothing has moved since."""
        return {
            name: [later(rank, now_s - self.at_s) for rank in ranks] for name, ranks in self.cells.items()
        }

    def holds(self, directory: Path, now_s: float) -> bool:
        """Whether it is true still: nothing moved, and rates and shares, which grow old by themselves, are not too old."""
        quiet = [rank.quiet_s or 0.0 for ranks in self.cells.values() for rank in ranks]
        if now_s - self.at_s > (STILL_S if min(quiet, default=0.0) > RATE_S else FRESH_S):
            return False
        runs = {run.path.name: run for run in running_in(directory)}
        return runs.keys() == self.cells.keys() and not any(
            has_moved(run, self.cells[name]) for name, run in runs.items()
        )


class Looking:
    """A look in a thread that nobody waits for. While nothing moves, the one `before` is told again with longer silences."""

    def __init__(self, directory: Path, before: Seen | None = None) -> None:
        self._directory = directory
        self._found: Cells = {}
        self.seen = before
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._look, name="nsadiag-top", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def cells(self) -> Cells:
        """Raises what the look raised."""
        if self._error:
            raise self._error
        return self._found

    def _look(self) -> None:
        try:
            now_s = time.monotonic()
            if self.seen is None or not self.seen.holds(self._directory, now_s):
                self.seen = Seen(cells=look(self._directory), at_s=time.monotonic())
            self._found = self.seen.until(time.monotonic())
        except Exception as error:
            self._error = error


def follow(directory: Path, console: Screen, *, once: bool) -> None:
    """A screen of its own until the job is over, q or Ctrl-C, and then the last of it; once where nothing can be redrawn."""
    running_in(directory)  # what is no run is refused before the screen is taken
    if once or not console.is_terminal or console.is_dumb_terminal:
        cells = look(directory)
    else:
        cells = _watched(directory, console)
    _print(directory, console, cells)


def _watched(directory: Path, console: Screen) -> Cells:
    """The last that was seen. Looks are made beside the screen: of very many ranks one takes seconds, and keys are answered meanwhile."""
    view, lines, cells, seen = View(), Lines(directory), Cells(), None
    with keys() as typed, Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("looking at the recorders ..."), refresh=True)
        began = due = time.monotonic()
        asked: Looking | None = Looking(directory)
        try:
            while True:
                if asked and asked.is_done:
                    now = time.monotonic()
                    cells, seen, asked, due = (
                        asked.cells(),
                        asked.seen,
                        None,
                        max(began + REFRESH_S, now + (now - began) / SHARE),
                    )
                    if _is_over(directory, cells):
                        break
                    _draw(directory, console, cells, view, lines, live)
                key = typed.wait(POLL_S if asked else max(due - time.monotonic(), 0.0))
                if not view.press(key, page=max(console.size.height - ROOM, 1)):
                    break
                if key and cells:
                    _draw(directory, console, cells, view, lines, live)
                if not asked and time.monotonic() >= due:
                    began = due = time.monotonic()
                    due += REFRESH_S
                    asked = None if view.is_paused else Looking(directory, seen)
        except KeyboardInterrupt:
            pass  # that is how one leaves such a view
    return cells


def _draw(directory: Path, console: Screen, cells: Cells, view: View, lines: Lines, live: Live) -> None:
    rows = _rows(cells)
    if not rows:
        live.update(Text(NOTHING), refresh=True)
        return
    lines.ask([rank.rank for _, rank in in_order(rows, view.order) if not (rank.place or rank.ended)])
    job = job_of(directory, rows)
    shown = screen_of(rows, job, view, console, line_of=lines.of, height=console.size.height)
    live.update(shown, refresh=True)


def _is_over(directory: Path, cells: Cells) -> bool:
    """Whether nothing changes any more; a job that was left running has ranks that live."""
    return is_over(directory) and all(rank.ended for _, rank in _rows(cells))


def _rows(cells: Cells) -> list[Row]:
    return [(name, rank) for name, ranks in cells.items() for rank in ranks]


def _print(directory: Path, console: Screen, cells: Cells) -> None:
    """The header and a row a rank; in a terminal as many as there is room for."""
    rows = in_order(_rows(cells), "b")
    if not rows:
        console.print(Text(NOTHING))
        return
    room = max(console.size.height - ROOM, 8) if console.is_terminal else len(rows)
    parts = [*header(rows, job_of(directory, rows), console), Text(), table_of(rows[:room], rows, console)]
    if len(rows) > room:
        parts.append(Text(f"and {count(len(rows) - room, 'rank')} more, further on", style="dim"))
    if not console.options.ascii_only:
        for part in parts:
            console.print(part)
        return
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    console.write(ascii_only(captured.get()))
