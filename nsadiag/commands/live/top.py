"""`nsadiag top`: every rank's step, phase, last event and rate, while the job runs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.live import Live
from rich.measure import Measurement
from rich.table import Table

from nsadiag.analysis.snapshot import RankNow, is_over, ranks_now, running_in
from nsadiag.evidence.layout import SCHEMA_VERSION
from nsadiag.evidence.phrases import count
from nsadiag.evidence.spans import spans
from nsadiag.printing import ascii_only
from nsadiag.reports.terminal.screen import Screen
from nsadiag.reports.terminal.text import Text
from nsadiag.reports.words import NOT_KNOWN, duration

REFRESH_S = 1.0
QUIET_S = 5.0  # from here on a silence is worth a colour
ROOM = 5  # lines of a terminal that are not ranks
NUMBERS = ("rank", "step", "steps/s", "quiet", "waited for")
TITLES = ("cell", *NUMBERS, "doing", "at", "last event")
SPARED = (
    "last event",
    "steps/s",
    "waited for",
)  # where the terminal is too narrow for all, the first of these first

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


def follow(directory: Path, console: Screen, *, once: bool) -> None:
    """Shows it again and again until the job is over, or Ctrl-C; once where nothing can be redrawn."""
    if once or not console.is_terminal or console.is_dumb_terminal:
        console.print(rendered(look(directory), console))
        return
    with Live(rendered(look(directory), console), console=console, auto_refresh=False) as live:
        try:
            while not is_over(directory):
                time.sleep(REFRESH_S)
                live.update(rendered(look(directory), console), refresh=True)
        except KeyboardInterrupt:
            return  # that is how one leaves such a view


def rendered(cells: Cells, console: Screen) -> Table | Text:
    """A row a rank, those that lag behind first; as many as there is room for."""
    rows = [(name, rank) for name, ranks in cells.items() for rank in ranks]
    if not rows:
        return Text("nothing runs there at the moment: no rank has opened its recorder")
    rows.sort(key=lambda row: (row[0], row[1].ended, row[1].step, -(row[1].quiet_s or 0.0), row[1].rank))
    furthest = max(rank.step for _, rank in rows)
    room = max(console.size.height - ROOM, 8) if console.is_terminal else len(rows)
    shown = [(Text(name), *_row(rank, furthest)) for name, rank in rows[:room]]
    if console.options.ascii_only:
        return Text(ascii_only("\n".join(" ".join(str(cell) for cell in row[1:]) for row in shown)))
    table = _widest(shown, console, TITLES[len(cells) == 1 :])
    if len(rows) > room:
        table.caption = f"and {count(len(rows) - room, 'rank')} more, further on"
    return table


def _widest(rows: Sequence[Sequence[Text]], console: Screen, titles: Sequence[str]) -> Table:
    """The table with as many columns as fit beside each other, each value whole."""
    for left_out in range(len(SPARED) + 1):
        table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
        kept = [title for title in titles if title not in SPARED[:left_out]]
        for title in kept:
            number = title in NUMBERS
            table.add_column(title, justify="right" if number else "left", overflow="fold", no_wrap=number)
        for row in rows:
            table.add_row(*(cell for title, cell in zip(TITLES, row, strict=True) if title in kept))
        if Measurement.get(console, console.options, table).maximum < console.width:
            break
    return table


def _row(rank: RankNow, furthest: int) -> list[Text]:
    quiet = rank.quiet_s is not None and rank.quiet_s > QUIET_S and not rank.ended
    return [
        Text(str(rank.rank)),
        Text(str(rank.step), style="yellow" if rank.step < furthest and not rank.ended else ""),
        Text(NOT_KNOWN if rank.rate_per_s is None else f"{rank.rate_per_s:.2f}"),
        Text(NOT_KNOWN if rank.quiet_s is None else duration(rank.quiet_s), style="red" if quiet else ""),
        Text(_waited_for(rank), style="red" if rank.waited_for_s > QUIET_S and not rank.ended else ""),
        Text(rank.phase, style="dim" if rank.ended else ""),
        Text(rank.place),
        Text(rank.last, style="dim"),
    ]


def _waited_for(rank: RankNow) -> str:
    """`12.0 s by 0,2-7`; where nobody waits now, what it has cost them so far."""
    if rank.waited_for_s:
        return f"{duration(rank.waited_for_s)} by {spans(rank.waiters)}"
    return f"({duration(rank.waited_for_total_s)})" if rank.waited_for_total_s else NOT_KNOWN
