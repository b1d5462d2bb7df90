"""The timer that a job has set for itself, whose signal ends a process that does not handle it."""

from __future__ import annotations

import ast
import signal
from collections.abc import Iterator

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.sources import tree_of
from nsadiag.evidence.records import Place

ALARM, TIMER, HANDLER = "alarm", "setitimer", "signal"
TIMERS = {"SIGALRM": "ITIMER_REAL", "SIGVTALRM": "ITIMER_VIRTUAL", "SIGPROF": "ITIMER_PROF"}
DEFAULT = "SIG_DFL"


def only_alarm(cell: CellEvidence, number: int) -> Place | None:
    """The one line that has this signal sent to its own process after a while; None where there are several.

    Nor where anything sets a handler: which of the two was in force when the signal came, the source does not say.
    """
    name = signal.Signals(number).name
    calls = [(file, *call) for file in cell.sources for call in _calls(cell, file)] if name in TIMERS else []
    if any(_handles(function, call, name) for _, function, call in calls):
        return None
    found = [(file, call.lineno) for file, function, call in calls if _sets(function, call, name)]
    return places.place(*found[0], None) if len(found) == 1 else None


def _calls(cell: CellEvidence, file: str) -> Iterator[tuple[str, ast.Call]]:
    """Calls of the module `signal`, under whatever names the file imports it or what is in it."""
    tree = tree_of(cell, file)
    nodes = list(ast.walk(tree)) if tree else []
    imports = [n for n in nodes if isinstance(n, ast.Import)]
    modules = {a.asname or a.name for n in imports for a in n.names if a.name == "signal"}
    of_signal = (n for n in nodes if isinstance(n, ast.ImportFrom) and n.module == "signal")
    names = {a.asname or a.name: a.name for n in of_signal for a in n.names}
    for call in nodes:
        function = call.func if isinstance(call, ast.Call) else None
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) in modules:
            yield function.attr, call  # type: ignore[misc]
        elif isinstance(function, ast.Name) and function.id in names:
            yield names[function.id], call  # type: ignore[misc]


def _handles(function: str, call: ast.Call, name: str) -> bool:
    given = [ast.unparse(each) for each in call.args]
    # Who sets handlers for signals that only the running program names may have set this one.
    named = not given or not given[0].rpartition(".")[2].startswith("SIG") or given[0].endswith(name)
    return function == HANDLER and named and not (len(given) > 1 and given[1].endswith(DEFAULT))


def _sets(function: str, call: ast.Call, name: str) -> bool:
    """Whether the call sets the timer: with 0 it ends it."""
    if function == ALARM:
        return name == "SIGALRM" and not _is_zero(call.args[:1])
    timer = ast.unparse(call.args[0]) if call.args else ""
    return function == TIMER and timer.endswith(TIMERS[name]) and not _is_zero(call.args[1:2])


def _is_zero(given: list[ast.expr]) -> bool:
    return bool(given) and isinstance(given[0], ast.Constant) and not given[0].value
