"""The command line: parse, call one function, print. Heavy rooms are imported inside the commands.

Each command registers itself with `shared.app`; their order here is that of `nsadiag --help`.
"""

from nsadiag.cli.run import run  # isort: skip
from nsadiag.cli.check import check, confirm  # isort: skip
from nsadiag.cli.prove import prove  # isort: skip
from nsadiag.cli.fix import fix  # isort: skip
from nsadiag.cli.matrix import matrix  # isort: skip
from nsadiag.cli.experiments import bisect, shrink  # isort: skip
from nsadiag.cli.looking import analyze, attach, diff, facts, invariants, report, top, where  # isort: skip
from nsadiag.cli.arming import arm, disarm  # isort: skip
from nsadiag.cli.showing import demo, doctor, explain, list_  # isort: skip
from nsadiag.cli.main import main
from nsadiag.cli.shared import app

__all__ = [
    "analyze",
    "app",
    "arm",
    "attach",
    "bisect",
    "check",
    "confirm",
    "demo",
    "diff",
    "disarm",
    "doctor",
    "explain",
    "facts",
    "fix",
    "invariants",
    "list_",
    "main",
    "matrix",
    "prove",
    "report",
    "run",
    "shrink",
    "top",
    "where",
]
