"""Renders what is on disk: for a terminal, a repository, a browser, a program."""

from typing import Any

from nsadiag.reports.load import load_report
from nsadiag.reports.model import MatrixReport, Report, RunReport
from nsadiag.reports.terminal.run import print_report

__all__ = ["MatrixReport", "Report", "RunReport", "load_report", "print_report"]
LATER = ("REPORTERS", "write_reports")  # with their drawing libraries, when they are asked for


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nsadiag.reports.formats import registry

    return getattr(registry, name)
