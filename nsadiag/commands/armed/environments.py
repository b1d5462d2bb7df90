"""An environment of Python's, as it is to be armed: where its packages lie, and the one file that arms it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nsadiag.deadlines import programs
from nsadiag.errors import MachineError, UsageError
from nsadiag.evidence.arming.settings import MARK, PTH, Settings, settings_in

SECONDS = 20.0
OLDEST = (3, 10)
BOOTSTRAP = Path(__file__).resolve().parents[2] / "worker" / "bootstrap"
PACKAGE = Path(__file__).resolve().parents[3]
# Said by the environment itself: folders whose .pth files it reads, its own before the user's.
QUESTION = """
import json, site, sys
found = [*site.getsitepackages()] if "site" in sys.modules and hasattr(site, "getsitepackages") else []
print(json.dumps({"version": sys.version_info[:2], "prefix": sys.prefix, "folders": [f for f in found if f in sys.path]}))
"""
# What a process must have in its environment to be looked at; of Slurm, which sets it for a lone batch script as well, a
# step of several tasks.
IS_RANK = (
    '("RANK" in e and "WORLD_SIZE" in e) or "OMPI_COMM_WORLD_RANK" in e or "PMI_RANK" in e'
    ' or ("SLURM_PROCID" in e and e.get("SLURM_STEP_NUM_TASKS", "1") != "1")'
)
START = "try:\n with open(HERE + '/armed.py') as f: exec(compile(f.read(), f.name, 'exec'), globals())\nexcept Exception: pass"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One environment, and where its .pth file lies or would."""

    python: str
    prefix: str
    folder: Path

    file = property(lambda self: self.folder / PTH)

    def settings(self) -> Settings | None:
        """Those by which it is armed; None where it is not. Raises UsageError for a file that nsadiag has not written."""
        try:
            return settings_in(self.file.read_text())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MachineError(f"cannot read {self.file}: {error.strerror}") from None
        except ValueError:
            raise UsageError(
                f"{self.file} was not written by nsadiag", "look at it, and remove it by hand"
            ) from None


def environment_of(python: str) -> Environment:
    """Asks the interpreter. Raises MachineError where it cannot say, is too old, or reads no .pth files."""
    try:
        answer = programs.run([python, "-c", QUESTION], seconds=SECONDS)
        told = json.loads(answer.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise MachineError(
            f"{python} does not answer: {error}", "give the interpreter that runs the job: --python PATH"
        ) from None
    if tuple(told["version"]) < OLDEST:
        version = ".".join(map(str, told["version"]))
        raise MachineError(f"{python} is Python {version}", "ranks are recorded from Python 3.10 on")
    folders = [Path(folder) for folder in told["folders"]]
    armed = [folder for folder in folders if (folder / PTH).exists()]
    for folder in [*armed, *folders]:
        if folder.is_dir():
            return Environment(python=python, prefix=str(told["prefix"]), folder=folder)
    raise MachineError(
        f"{python} has no site-packages that it reads .pth files of",
        "arm it by its environment: nsadiag arm --variables",
    )


def text_of(environment: Environment, settings: Settings) -> str:
    """The file: a line for people and for `disarm`, and one that Python runs at each start, which asks for a few variables."""
    # A namespace of its own: nothing of it is left in Python's.
    names = {"__name__": "nsadiag_armed", "HERE": str(BOOTSTRAP), "ARMED_BY": str(environment.file)}
    start = f"import os; e = os.environ; e.get('NSADIAG_ARMED') != '0' and ({IS_RANK}) and exec({START!r}, {names!r})"
    return f"{MARK}{settings.to_json()}\n{start}\n"


def write(environment: Environment, settings: Settings) -> None:
    """In one step, readable to whoever uses the environment. Raises MachineError where that is refused."""
    beside = environment.file.with_name(f".{PTH}.{os.getpid()}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "w") as file:
            file.write(text_of(environment, settings))
        beside.replace(environment.file)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise _refused("arm", environment, error) from None


def remove(environment: Environment) -> None:
    """Raises MachineError where that is refused."""
    try:
        environment.file.unlink()
    except FileNotFoundError:
        return
    except OSError as error:
        raise _refused("disarm", environment, error) from None


def _refused(what: str, environment: Environment, error: OSError) -> MachineError:
    return MachineError(
        f"cannot {what} {environment.prefix}: {environment.folder}: {error.strerror}",
        "do it as the user who owns the environment; a job can be armed by its own: nsadiag arm --variables",
    )


def variables(settings: Settings) -> dict[str, str]:
    """The same by the environment of a process or an image."""
    found = {"NSADIAG_ARMED": "1", "PYTHONPATH": str(BOOTSTRAP)}
    if settings.out:
        found["NSADIAG_ARMED_OUT"] = settings.out
    if settings.metrics:
        found["NSADIAG_ARMED_METRICS"] = settings.metrics
    return found
