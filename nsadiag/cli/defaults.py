"""Defaults of options: `[tool.nsadiag.COMMAND]` in the nearest pyproject.toml, and `NSADIAG_<OPTION>` for those of `run`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nsadiag.errors import UsageError, did_you_mean

FILE = "pyproject.toml"
OF_ENVIRONMENT = "run"  # the command whose options have variables
# A run that replaces another, or joins other nodes, is asked for each time.
NEVER = frozenset({"force", "nnodes", "node_rank", "master_addr", "master_port", "local_addr", "run_token"})


def defaults(
    commands: Mapping[str, Any], folder: Path, environ: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The `default_map` for click; a variable has one value of an option that may be repeated on each line. Raises UsageError for a table or key that is not known, and for a file that cannot be read."""
    found: dict[str, dict[str, Any]] = {}
    for name, table in _tables(folder, commands).items():
        found[name] = _options(name, table, commands[name])
    ours = any(variable.startswith("NSADIAG_") for variable in environ)
    variables = {
        parameter.name: environ[variable].splitlines() if parameter.multiple else environ[variable]
        for parameter in (commands[OF_ENVIRONMENT].params if ours else ())
        if (variable := f"NSADIAG_{parameter.name.upper()}") in environ and parameter.name not in NEVER
    }
    if variables:
        found[OF_ENVIRONMENT] = {**found.get(OF_ENVIRONMENT, {}), **variables}
    return found


def _given(option: Any, value: Any) -> Any:
    """As the command line would give it: an option that may be repeated has a list, any other one value."""
    if option.multiple:
        return list(map(str, value)) if isinstance(value, list) else [str(value)]
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _tables(folder: Path, commands: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    for parent in (folder, *folder.parents):
        file = parent / FILE
        document = _read(file) if file.is_file() and _is_trusted(file) else {}
        tables = document.get("tool", {}).get("nsadiag")
        if tables is None:
            continue
        for name, table in tables.items():
            if name not in commands or not isinstance(table, dict):
                hint = (
                    did_you_mean(name, commands)
                    or "options go into the table of their command: [tool.nsadiag.run]"
                )
                raise UsageError(f"{file}: [tool.nsadiag] has {name!r}, which is no command", hint)
        return dict(tables)
    return {}


def _read(file: Path) -> dict[str, Any]:
    text = file.read_text(encoding="utf-8", errors="replace")
    if "tool.nsadiag" not in text:
        return {}  # most have none: they need not be well-formed for us
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UsageError(
                f"{file}: {error}", "correct the file, or give options on the command line"
            ) from None
    raise UsageError(
        f"{file}: [tool.nsadiag] is read by Python 3.11 and later", "use NSADIAG_<OPTION>, or options"
    )


def _is_trusted(file: Path) -> bool:
    """Whether its owner is the user or root: an option may name a command, and a shared folder may be above the working directory."""
    return file.stat().st_uid in (os.getuid(), 0)


def _options(command: str, table: Mapping[str, Any], known: Any) -> dict[str, Any]:
    options = [p for p in known.params if p.param_type_name == "option" and p.name not in NEVER]
    names = {p.name.replace("_", "-"): p for p in options if p.name != "help"}
    found = {}
    for key, value in table.items():
        option = names.get(key.replace("_", "-"))
        if option is None:
            hint = did_you_mean(key, names) or f"nsadiag {command} --help lists the options"
            raise UsageError(f"[tool.nsadiag.{command}] has {key!r}, which is no option to set there", hint)
        found[option.name] = _given(option, value)
    return found
