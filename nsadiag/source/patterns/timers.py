"""Timers that a job sets for itself, whose signal ends a process that does not handle it."""

from __future__ import annotations

import ast
import signal
from collections.abc import Iterator

from nsadiag.evidence.records import Place
from nsadiag.source.model import SourceFile, SourceModel, place

ALARM, TIMER, HANDLER = "alarm", "setitimer", "signal"
TIMERS = {"SIGALRM": "ITIMER_REAL", "SIGVTALRM": "ITIMER_VIRTUAL", "SIGPROF": "ITIMER_PROF"}
DEFAULT = "SIG_DFL"


def only_alarm(code: SourceModel, number: int) -> Place | None:
    """The one line that has this signal sent to its own process after a while; None where there are several.

    Nor where anything sets a handler: which of the two was in force when the signal came, the source does not say.
    """
    name = signal.Signals(number).name
    calls = [(file.path, *call) for file in code.kept for call in _calls(file)] if name in TIMERS else []
    if any(_handles(function, call, name) for _, function, call in calls):
        return None
    found = [(file, call.lineno) for file, function, call in calls if _sets(function, call, name)]
    return place(*found[0], None) if len(found) == 1 else None


def _calls(file: SourceFile) -> Iterator[tuple[str, ast.Call]]:
    """Calls of the module `signal`, under whatever names the file imports it or what is in it."""
    modules = {a.asname or a.name for n in file.all(ast.Import) for a in n.names if a.name == "signal"}
    of_signal = (n for n in file.all(ast.ImportFrom) if n.module == "signal")
    names = {a.asname or a.name: a.name for n in of_signal for a in n.names}
    for call in file.calls:
        function = call.func
        if isinstance(function, ast.Attribute) and ast.unparse(function.value) in modules:
            yield function.attr, call
        elif isinstance(function, ast.Name) and function.id in names:
            yield names[function.id], call


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
