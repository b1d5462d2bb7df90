"""The entry point: every error meant for a person becomes a line, a hint and an exit code."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any

import typer

from nsadiag.agent import interrupts
from nsadiag.cli.defaults import defaults
from nsadiag.cli.shared import app
from nsadiag.errors import EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE, MachineError, NsadiagError
from nsadiag.printing import note, show


def main() -> None:
    """Entry point: every failure ends in one line, a hint, and the documented exit code."""
    # A scheduler ends a job by SIGTERM, a closed terminal by SIGHUP: both are the Ctrl-C they stand for.
    interrupts.listen()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="surrogateescape")  # names of files that are in no encoding
    try:
        command: Any = typer.main.get_command(app)  # once: it takes as long as importing typer
        found = defaults(command.commands, Path.cwd(), os.environ)
        code = command(standalone_mode=False, default_map=found)
        # Newer typers turn Ctrl-C into this code by themselves; a job that ended with it has said so itself.
        if code == EXIT_INTERRUPTED and interrupts.asked():
            _interrupted()
        sys.exit(code if isinstance(code, int) else 0)
    except NsadiagError as error:
        _fail(error.message, error.hint, error.exit_code)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except KeyboardInterrupt:
        _interrupted()
    except BrokenPipeError:
        sys.exit(EXIT_USAGE)
    except OSError as error:
        machine = MachineError(f"{error.strerror}: {error.filename}" if error.filename else str(error))
        _fail(machine.message, "check space and permission under --out (df -h, ls -ld)", machine.exit_code)
    except Exception as error:
        _fail_ourselves(error)


def _fail(message: str, hint: str, code: int) -> None:
    note(f"error: {message}")
    if hint:
        note(f"hint: {hint}")
    sys.exit(code)


def _fail_ourselves(error: Exception) -> None:
    if isinstance(error, typer.Abort):
        _interrupted()
    # Newer typers carry a click of their own, so its exceptions are known by what they can do.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        if type(error).__name__ == "NoArgsIsHelpError":
            show(format_message())
            sys.exit(EXIT_USAGE)
        from nsadiag.cli.mistakes import said_of

        _fail(*said_of(error, sys.argv[1:]), EXIT_USAGE)
    import traceback

    note("".join(traceback.format_exception(error)), end="")
    _fail(
        f"this is a fault of nsadiag: {error!r}", "please report it with the traceback above", EXIT_INTERNAL
    )


def _interrupted() -> None:
    is_matrix = sys.argv[1:2] == ["matrix"]
    hint = "finished cells are kept: --resume with the same --out continues" if is_matrix else ""
    _fail("interrupted", hint, EXIT_INTERRUPTED)
