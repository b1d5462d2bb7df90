"""What each script of repro/ promises in its docstring, as data that any test can import."""

from __future__ import annotations

import ast
import functools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nsadiag.analysis.rules import registry
from nsadiag.commands.faults import class_and_mechanism, scripts

# libyaml where PyYAML has it: each worker of a test run reads three hundred of them.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
CLASSES = tuple(registry.CLASSES)
OUTCOMES = ("hung", "crashed", "slow", "wrong", "incomplete", "healthy", "unknown")
OUTCOME = re.compile(r"(?P<outcome>hung) \((?P<certainty>proven|suspected)\)|(?P<other>(?!hung).+)")
KEYS = (
    "needs", "launch", "world_size", "options", "outcome", "class", "guilty_ranks", "code", "parameter", "action",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Where a field holds several values, any of them is right; the first is what we say today."""

    script: Path
    needs: str | None  # "gpu": run where there is one
    launch: tuple[str, ...]
    world_size: int
    options: tuple[str, ...]  # of `nsadiag run`
    outcomes: tuple[str, ...]
    certainty: str | None  # of a hang: proven or suspected
    classes: tuple[str, ...]
    mechanism: str | None  # of the class, where it has many
    guilty_ranks: tuple[int, ...]
    codes: tuple[str, ...]  # each a part of a line that `where.code` may hold; empty: no line applies
    parameter: str | None
    action: str | None  # what to do about it

    @property
    def name(self) -> str:
        return self.script.stem

    @property
    def command(self) -> list[str]:
        """The launcher line, for behind `nsadiag run ... --`."""
        return [*self.launch, str(self.script)]


@functools.cache
def promises() -> list[Promise]:
    """One promise a script, by name."""
    return [read_promise(script) for script in scripts()]


def script_of(name: str) -> Path:
    """The script of that name, in the folder of its class. Raises KeyError for a name that none has."""
    return {path.stem: path for path in scripts()}[name]


def read_promise(script: Path) -> Promise:
    fields = promised_fields(script)
    launch = tuple(shlex.split(fields["launch"]))
    named = [class_and_mechanism(text) for text in as_tuple(fields["class"])]
    outcomes = [OUTCOME.fullmatch(text) for text in as_tuple(fields["outcome"])]
    if not all(outcomes):
        raise ValueError(
            f"{script.name} promises {fields['outcome']!r}: a hang is `hung (proven)` or `hung (suspected)`"
        )
    return Promise(
        script=script,
        needs=fields.get("needs"),
        launch=launch,
        world_size=fields.get("world_size", int(launch[-1]) if len(launch) > 1 else 1),
        options=tuple(fields.get("options", ())),
        outcomes=tuple(found["outcome"] or found["other"] for found in outcomes if found),
        certainty=next((found["certainty"] for found in outcomes if found and found["certainty"]), None),
        classes=tuple(cls for cls, _ in named),
        mechanism=named[0][1],
        guilty_ranks=tuple(fields["guilty_ranks"]),
        codes=as_tuple(fields.get("code")),
        parameter=fields.get("parameter"),
        action=None if as_tuple(fields["outcome"]) == ("healthy",) else fields.get("action", "fix code"),
    )


def promised_fields(script: Path) -> dict[str, Any]:
    """The YAML that follows the line `Promise:` in the script's docstring."""
    docstring = ast.get_docstring(ast.parse(script.read_text())) or ""
    _, found, block = docstring.partition("\nPromise:\n")
    if not found:
        raise ValueError(f"{script.name} has no line `Promise:` in its docstring")
    fields = yaml.load(block, Loader=LOADER)
    if not isinstance(fields, dict):
        raise ValueError(f"{script.name} promises {fields!r}, which is no mapping")
    return fields


def code_lines(script: Path) -> list[str]:
    """The script's lines below its docstring."""
    source = script.read_text()
    docstring = ast.parse(source).body[0]
    return source.splitlines()[docstring.end_lineno :]


def as_tuple(value: str | list[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)
