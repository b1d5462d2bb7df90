"""`nsadiag demo` and `nsadiag list`: jobs that fail on purpose, and what there is to look at them with."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from nsadiag.commands.run import RunRequest
from nsadiag.errors import UsageError

HARD_LIMIT_S = 120.0
PROBE_FILES = Path(__file__).resolve().parents[1] / "worker" / "probes"


def _folder() -> Path:
    """repro/ of the installed package, else of the repository."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "repro"
    return installed if installed.is_dir() else package.parent / "repro"


def fault_names() -> dict[str, str]:
    """Script to the first sentence of its docstring."""
    scripts = sorted(_folder().glob("*.py"))
    return {path.stem: _headline(_docstring(path)) for path in scripts}


def _docstring(path: Path) -> str | None:
    """Of a file that is not imported: probes need torch, and scripts would run."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def _headline(docstring: str | None) -> str:
    """The first paragraph, on one line."""
    return " ".join((docstring or "").split("\n\n")[0].split())


def demo_request(fault: str, *, out: Path | None, force: bool, quiet_stdout: bool) -> RunRequest:
    """The launcher line for a script of repro/. Raises UsageError if there is none of that name."""
    script = _folder() / f"{fault.removesuffix('.py')}.py"
    if not script.is_file():
        raise UsageError(f"no such fault: {fault}", f"choose from {', '.join(fault_names())}")
    alone = "launch: python" in script.read_text()
    launcher = [] if alone else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launcher, str(script)]
    return RunRequest(
        command=command, out=out, force=force, timeout_s=HARD_LIMIT_S, quiet_stdout=quiet_stdout
    )


def parts() -> dict[str, dict[str, str]]:
    """What is built in, by kind: name to what it is for."""
    from nsadiag.agent.captures import CAPTURES, NODE_CAPTURES
    from nsadiag.analysis.detectors import DETECTORS
    from nsadiag.evidence.probes import PROBE_NAMES
    from nsadiag.reports import REPORTERS

    return {
        "probes": {name: _headline(_docstring(PROBE_FILES / f"{name}.py")) for name in PROBE_NAMES},
        "captures": {
            name: _headline(capture.__doc__) for name, capture in (CAPTURES | NODE_CAPTURES).items()
        },
        "detectors": {d.__name__: _headline(sys.modules[d.__module__].__doc__) for d in DETECTORS},
        "reporters": dict.fromkeys(REPORTERS, ""),
    }
