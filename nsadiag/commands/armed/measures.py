"""OpenMetrics of all armed jobs of a user on this node, in one file: a process that writes it once, and ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nsadiag.commands.armed import stalls
from nsadiag.commands.messages import metrics
from nsadiag.evidence.arming.home import Home
from nsadiag.evidence.layout import RunDir, read_own_json, replace_private


def text_of(home: Home) -> str:
    """The whole file."""
    from nsadiag.analysis.snapshot import ranks_now

    runs = [home.job(name) for name in home.job_names()]
    named = [(_label(run), list(ranks_now(run))) for run in runs]
    return "\n".join([*metrics.rank_lines(named), *_verdicts(runs), "# EOF", ""])


def _label(run: RunDir) -> str:
    """The script, and the launcher's number: two jobs of one script are two."""
    metas = (read_own_json(rank.meta) for rank in run.ranks())
    command: list[Any] = next((meta["argv"] for meta in metas if isinstance(meta.get("argv"), list)), [])
    return f"{stalls.name_of([str(word) for word in command])}-{run.path.name.partition('-')[0]}"


def _verdicts(runs: list[RunDir]) -> Iterator[str]:
    yield "# TYPE nsadiag_stalled gauge"
    yield "# HELP nsadiag_stalled 1 while an alert stands"
    for run in runs:
        yield f'nsadiag_stalled{{run="{metrics.escaped(_label(run))}"}} {int((run.path / stalls.STALL).exists())}'
    yield "# TYPE nsadiag_verdicts counter"
    yield "# HELP nsadiag_verdicts Alerts so far, by class"
    tallies: list[tuple[str, dict[str, Any]]] = [
        (metrics.escaped(_label(run)), read_own_json(run.path / stalls.TALLY)) for run in runs
    ]
    for label, tally in tallies:
        for cls, count in sorted(tally.get("verdicts", {}).items()):
            yield f'nsadiag_verdicts_total{{run="{label}",class="{metrics.escaped(str(cls))}"}} {int(count)}'
    yield "# TYPE nsadiag_withdrawn counter"
    yield "# HELP nsadiag_withdrawn Alerts that were withdrawn"
    for label, tally in tallies:
        yield f'nsadiag_withdrawn_total{{run="{label}"}} {int(tally.get("withdrawn", 0))}'


def main(home: str, file: str) -> None:
    """Entry point of the process that the watcher starts."""
    path = Path(file)
    with contextlib.suppress(OSError, ValueError):
        replace_private(
            path, text_of(Home(Path(home))).encode(errors="replace"), readers=metrics.readers_of(path)
        )
