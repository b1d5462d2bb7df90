"""`nsadiag.check`: a function on several ranks of this machine, each call that communicates compared before it is made."""

from __future__ import annotations

import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsadiag.deadlines import programs
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.records import Verdict
from nsadiag.evidence.rehearsal import SOCKET
from nsadiag.evidence.rehearsal.calls import Answer, Call, Rehearsal
from nsadiag.reports.loaded import Run, load

ENTRY = ("-m", "nsadiag.worker.rehearsal.function")
GRACE_S = 120.0  # beyond the limit of the rehearsal: start-up, last snapshots and the verdict
STOP_S = 30.0  # for a rehearsal past its limit to stop its ranks


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The answer of a rehearsal (docs/check.md), and the run that it left."""

    run: Run
    rehearsal: Rehearsal
    output: str  # what the ranks printed, and nsadiag's own messages

    @property
    def answer(self) -> Answer:
        """`agreed`, `differs`, `raised`, `undecided` or `can't`."""
        return self.rehearsal.answer

    @property
    def why(self) -> str:
        """The reason for the answer, in a sentence."""
        return self.rehearsal.why

    @property
    def calls(self) -> tuple[Call, ...]:
        """Calls that cannot be matched, or that were open at the end: rank, operation, sizes, line."""
        return self.rehearsal.calls

    @property
    def verdict(self) -> Verdict | None:
        """Class, ranks and line, by the rules that judge runs."""
        return self.run.verdict

    @property
    def directory(self) -> Path:
        """The run directory."""
        return self.run.directory

    def __str__(self) -> str:
        return "\n".join(self.rehearsal.lines())


def check(
    function: Callable[..., object],
    ranks: int = 4,
    args: Sequence[object] = (),
    *,
    seconds: float = 60.0,
    out: str | Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Checked:
    """Calls `function(*args)` on that many ranks of this machine, each with the environment that torchrun gives to its ranks.

    `seconds`: after so many it is undecided. `out`: the run directory, an earlier run in it is replaced. `env`: variables of the
    ranks besides those of this process. The function is imported again on each rank, as by multiprocessing's spawn: it stands
    at the top level of a module, and `args` can be pickled. Raises UsageError where it cannot be called so, and MachineError
    where there is no answer.
    """
    if SOCKET in os.environ:
        raise UsageError(
            "nsadiag.check was called on a rank of a rehearsal",
            "each rank imports the caller's script again: put the call under `if __name__ == '__main__':`",
        )
    if ranks < 1 or not seconds > 0:
        raise UsageError(
            f"nsadiag.check with ranks={ranks}, seconds={seconds:g}", "give at least one of each"
        )
    with tempfile.TemporaryDirectory(prefix="nsadiag-call-") as folder:
        call = Path(folder) / "call.pickle"
        call.write_bytes(_pickled(function, args))
        where = ["--force", "--out", str(out)] if out is not None else []
        judge = [sys.executable, "-m", "nsadiag", "check", "--json", *where, "--seconds", str(seconds), "--"]
        line = [*judge, *_launcher(), "--standalone", "--nproc-per-node", str(ranks), *ENTRY, str(call)]
        return _answer(line, seconds, {**os.environ, **(env or {})})


def _answer(line: list[str], seconds: float, env: Mapping[str, str]) -> Checked:
    try:
        done = programs.run(line, env=env, seconds=seconds + GRACE_S, grace_s=STOP_S)
    except OSError as error:
        raise MachineError(f"no answer from a rehearsal: {error}", "see nsadiag doctor") from None
    try:
        directory = json.loads(done.stdout)["directory"]
    except (ValueError, KeyError):
        raise MachineError(
            f"no answer from a rehearsal: {done.stderr.strip()[-2000:] or f'exit code {done.returncode}'}",
            "see nsadiag doctor",
        ) from None
    run = load(directory)
    rehearsal = getattr(run.report, "rehearsal", None)
    if not isinstance(rehearsal, Rehearsal):
        raise MachineError(f"{directory} has no rehearsal.json", "see nsadiag doctor")
    return Checked(run=run, rehearsal=rehearsal, output=done.stderr)


def _pickled(function: Callable[..., object], args: Sequence[object]) -> bytes:
    """All that a rank needs to make the call. Raises UsageError for what no other process can import."""
    name = getattr(function, "__qualname__", repr(function))
    try:
        call = pickle.dumps((function, tuple(args)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"nsadiag.check cannot hand {name} to other processes: {error}",
            "define it at the top level of a module, and pass what it needs in args",
        ) from None
    caller = {
        "name": name,
        "sys_path": [entry or str(Path.cwd()) for entry in sys.path],
        "sys_argv": sys.argv,
    }
    if b"__main__" in call:
        caller |= _main(name)
    return pickle.dumps((caller, call))


def _main(name: str) -> dict[str, Any]:
    """The caller's script, as spawn.prepare imports it again. Raises UsageError for what was typed in."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return {"init_main_from_name": spec.name}
    if file is None or not Path(file).is_file():  # `python -` calls it <stdin>
        raise UsageError(
            f"nsadiag.check cannot import {name} again: it was typed in, and is in no file",
            "define it in a module",
        )
    return {"init_main_from_path": str(Path(file).absolute())}


def _launcher() -> list[str]:
    """torchrun of this Python."""
    beside = Path(sys.executable).with_name("torchrun")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "torch.distributed.run"]
