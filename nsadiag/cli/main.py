"""The entry point: every error meant for a person becomes a line, a hint and an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer

from nsadiag.agent import interrupts
from nsadiag.cli.defaults import defaults
from nsadiag.cli.shared import app
from nsadiag.deadlines import programs
from nsadiag.errors import EXIT_ENVIRONMENT, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_USAGE, NsadiagError
from nsadiag.printing import note, show


def main() -> None:
    """Entry point: every failure ends in one line, a hint, and the documented exit code."""
    # A scheduler ends a job by SIGTERM, a closed terminal by SIGHUP: both are the Ctrl-C they stand for.
    interrupts.listen()
    with interrupts.held_off():
        try:
            _call()
        except SystemExit as leaving:
            programs.end_running()
            interrupts.end_at_once(leaving.code if isinstance(leaving.code, int) else EXIT_INTERNAL)
            raise


def _call() -> NoReturn:
    """Always ends by the exit code; interrupts are let in where the command runs, and not where its end is told."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="surrogateescape")  # names of files that are in no encoding
    commands: Mapping[str, Any] = {}
    found: dict[str, dict[str, Any]] = {}
    try:
        commands = app.commands()
        found |= defaults(commands, Path.cwd(), os.environ)
        with interrupts.let_in():
            code = app.built(sys.argv[1:])(standalone_mode=False, default_map=found)
        # Newer typers turn Ctrl-C into this code by themselves; a job that ended with it has said so itself.
        if code == EXIT_INTERRUPTED and interrupts.asked():
            _interrupted()
        sys.exit(code if isinstance(code, int) else 0)
    except typer.Exit as leaving:
        sys.exit(leaving.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _interrupted()
    except Exception as error:
        _start_unrecorded(commands, found, error)
        if isinstance(error, BrokenPipeError):
            sys.exit(EXIT_USAGE)
        _fail_with(error)


def _start_unrecorded(
    commands: Mapping[str, Any], found: dict[str, dict[str, Any]], error: Exception
) -> None:
    """Nothing of ours keeps a job of --passthrough from starting: then this does not return."""
    with contextlib.suppress(Exception):
        from nsadiag.cli.unrecorded import start_instead

        start_instead(sys.argv[1:], commands, found, _said(error)[0])


def _said(error: Exception) -> tuple[str, str, int]:
    """Message, hint and exit code."""
    if isinstance(error, NsadiagError):
        return error.message, error.hint, error.exit_code
    if isinstance(error, OSError):
        message = f"{error.strerror}: {error.filename}" if error.filename else str(error)
        return message, "check space and permission under --out (df -h, ls -ld)", EXIT_ENVIRONMENT
    # Newer typers carry a click of their own, so its exceptions are known by what they can do.
    if hasattr(error, "format_message"):
        from nsadiag.cli.assistance.mistakes import said_of

        return *said_of(error, sys.argv[1:]), EXIT_USAGE
    return (
        f"this is a fault of nsadiag: {error!r}",
        "please report it with the traceback above",
        EXIT_INTERNAL,
    )


def _fail_with(error: Exception) -> NoReturn:
    if type(error).__name__ == "NoArgsIsHelpError":
        show(error.format_message())  # type: ignore[attr-defined]
        sys.exit(EXIT_USAGE)
    message, hint, code = _said(error)
    if code == EXIT_INTERNAL:
        import traceback

        note("".join(traceback.format_exception(error)), end="")
    _fail(message, hint, code)


def _fail(message: str, hint: str, code: int) -> NoReturn:
    with interrupts.skippable():
        note(f"error: {message}")
        if hint:
            note(f"hint: {hint}")
    sys.exit(code)


def _interrupted() -> NoReturn:
    is_matrix = sys.argv[1:2] == ["matrix"]
    hint = "finished cells are kept: --resume with the same --out continues" if is_matrix else ""
    _fail("interrupted", hint, EXIT_INTERRUPTED)
