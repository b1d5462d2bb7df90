"""Renders what is on disk: for a terminal, a repository, a browser, a program."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsadiag.reports.load import load_report
    from nsadiag.reports.model import MatrixReport, Report, RunReport
    from nsadiag.reports.terminal.run import print_report

__all__ = ["MatrixReport", "Report", "RunReport", "load_report", "print_report"]
# By name the module that has it: whoever draws a table on a screen needs none of them.
HOMES = {
    "MatrixReport": "model",
    "Report": "model",
    "RunReport": "model",
    "load_report": "load",
    "print_report": "terminal.run",
    "REPORTERS": "formats.registry",
    "write_reports": "formats.registry",
}


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)
