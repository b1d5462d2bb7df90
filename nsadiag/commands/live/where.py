"""`nsadiag where`: the place of every rank at this moment, without a verdict."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nsadiag.agent.attaching import finding
from nsadiag.agent.attaching.seeking import sought_among, sought_in
from nsadiag.agent.whereabouts import Sought, Whereabouts, whereabouts
from nsadiag.errors import UsageError
from nsadiag.evidence.layout import SCHEMA_VERSION, RunDir
from nsadiag.evidence.spans import rank_names
from nsadiag.printing import show as show_text
from nsadiag.reports.words import NOT_KNOWN, duration

if TYPE_CHECKING:
    from rich.table import Table

    from nsadiag.reports.terminal.screen import Screen

NEITHER = "pgrep -af torchrun shows a launcher's pid: nsadiag where PID; nsadiag ls lists the runs"


def look(targets: Sequence[str]) -> list[Whereabouts]:
    """The ranks of the processes, of the run in a directory, or of a job of Slurm's or Ray's. Raises NsadiagError."""
    scheduled = [word for word in targets if word.startswith(("slurm:", "ray:"))]
    if not scheduled:
        return whereabouts(_sought(targets))
    if len(targets) > 1:
        raise UsageError(
            f"{scheduled[0]} beside other targets", "one job at a time: nsadiag where slurm:JOBID"
        )
    from nsadiag.commands.live import clusters

    scheduler, _, job = scheduled[0].partition(":")
    return clusters.of_slurm(job) if scheduler == "slurm" else clusters.of_ray(job)


def _sought(targets: Sequence[str]) -> list[Sought]:
    if not targets:
        from nsadiag.commands.runs import latest

        try:
            return _of_run(latest())
        except UsageError as error:  # an empty $(pgrep ...) is no argument at all
            raise UsageError(f"no job named, and {error.message}", NEITHER) from None
    paths = [Path(word) for word in targets if not word.isdigit()]
    if not paths:
        ranks, _ = finding.find_ranks([int(word) for word in dict.fromkeys(targets)])
        return sought_among(ranks)
    if len(targets) > 1:
        raise UsageError(
            "pids and a directory at once", "give the pids of one job, or the directory of one run"
        )
    return _of_run(paths[0])


def _of_run(path: Path) -> list[Sought]:
    if not (path / "ranks").is_dir():
        raise UsageError(
            f"{path} is neither a pid nor a run directory",
            NEITHER,
        )
    run = RunDir(path=path)
    finding.check_alive(run)
    return sought_in(run)


def as_json(found: Iterable[Whereabouts]) -> str:
    document = {"schema_version": SCHEMA_VERSION, "ranks": [each.to_json() for each in found]}
    return json.dumps(document, indent=1)


def rows(found: Iterable[Whereabouts]) -> list[tuple[str, str, str, str]]:
    """Ranks, line, call, and since when: those that stand alike in one row, the fewest first."""
    alike: dict[tuple[str, str, str], list[Whereabouts]] = {}
    for each in found:
        alike.setdefault((each.place, each.call, each.unseen), []).append(each)
    return [
        (
            rank_names([each.rank for each in group]),
            place or unseen,
            call or NOT_KNOWN,
            _since([each.since_s for each in group]),
        )
        for (place, call, unseen), group in sorted(
            alike.items(), key=lambda item: (len(item[1]), item[1][0].rank)
        )
    ]


def _since(waits: Sequence[float | None]) -> str:
    known = sorted(wait for wait in waits if wait is not None)
    if not known:
        return NOT_KNOWN
    least, most = duration(known[0]), duration(known[-1])
    return most if least == most else f"{least} to {most}"


def table(found: Iterable[Whereabouts]) -> Table:
    """Four columns, folded where a terminal is too narrow for them."""
    from rich.table import Table

    from nsadiag.reports.terminal.text import Text

    shown = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    for title in ("ranks", "line", "call", "since"):
        shown.add_column(title, overflow="fold", justify="right" if title == "since" else "left")
    for row in rows(found):
        shown.add_row(*map(Text, row))
    return shown


def lines(found: Iterable[Whereabouts]) -> list[str]:
    """The same as plain lines, for a log."""
    cells = [("ranks", "line", "call", "since"), *rows(found)]
    widths = [max(len(row[n]) for row in cells) for n in range(3)]
    return ["  ".join([*(row[n].ljust(widths[n]) for n in range(3)), row[3]]) for row in cells]


def show(found: Sequence[Whereabouts], console: Callable[[], Screen]) -> None:
    """Plain lines where they fit or go to no terminal; only what does not fit needs a console, which takes long to import."""
    plain = lines(found)
    if _fits(plain):
        show_text("\n".join(plain))
        return
    from nsadiag.reports.terminal.text import Text

    screen = console()
    if screen.is_terminal and not screen.options.ascii_only:
        screen.print(table(found))
    else:
        screen.print(Text("\n".join(plain)))


def _fits(plain: Iterable[str]) -> bool:
    text = "\n".join(plain)
    if not (text.isascii() or (sys.stdout.encoding or "").lower().startswith("utf")):
        return False
    bounded = sys.stdout.isatty() or "COLUMNS" in os.environ
    return not bounded or max(map(len, text.splitlines())) < shutil.get_terminal_size().columns
