"""Renders what is on disk: for a terminal, a repository, a browser, a program."""

from nsadiag.reports.load import load_report
from nsadiag.reports.model import MatrixReport, Report, RunReport
from nsadiag.reports.terminal.run import print_report

__all__ = ["MatrixReport", "Report", "RunReport", "load_report", "print_report"]
