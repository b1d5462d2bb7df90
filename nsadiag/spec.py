"""A matrix of experiments: YAML in, cells out; a key that is not known is refused with the nearest one."""

from __future__ import annotations

import difflib
import itertools
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nsadiag.errors import UsageError

BUILT_IN = "nsa-quick"
EXAMPLE_HINT = "see configs/matrices/nsa-quick.yaml"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _name_the_nearest_key(cls, values: Any) -> Any:
        for key in values if isinstance(values, dict) else ():
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), list(cls.model_fields), n=1, cutoff=0.4)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(cls.model_fields)}"
                raise UsageError(f"unknown key {key!r} in {cls.__name__.lower()}", hint)
        return values


class _Words(_Strict):
    @field_validator("args", "command", check_fields=False)
    @classmethod
    def _quotes_are_closed(cls, text: str) -> str:
        shlex.split(text)
        return text


class Setting(_Words):
    """What one value of an axis adds to a cell."""

    args: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    world_size: int | None = Field(default=None, ge=1)


class Axis(_Words):
    """One factor. `values` is a list, put into `args` and `env` as {value}, or a mapping of labels to settings."""

    values: list[str | int | float | bool | None] | dict[str, Setting] = Field(min_length=1)
    args: str = ""
    env: dict[str, str] = Field(default_factory=dict)

    def labelled(self) -> list[tuple[str, Setting]]:
        """Label and setting, in the order given."""
        if isinstance(self.values, dict):
            return list(self.values.items())
        return [(_label(v), self._filled(_label(v))) for v in self.values]

    def settings(self) -> dict[str, Setting]:
        """Label to setting."""
        return dict(self.labelled())

    def _filled(self, value: str) -> Setting:
        env = {name: text.replace("{value}", value) for name, text in self.env.items()}
        return Setting(args=self.args.replace("{value}", value), env=env)


def _label(value: object) -> str:
    """As YAML spells it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


class Matrix(_Words):
    """Experiments that differ in some factors and in nothing else."""

    name: str = Field(pattern=r"^[\w.-]+$")
    command: str = Field(
        min_length=1
    )  # what torchrun would be given: a script or `-m module`, with its arguments
    axes: dict[str, Axis] = Field(min_length=1)
    world_size: int = Field(default=1, ge=1)
    env: dict[str, str] = Field(default_factory=dict)
    probes: str = "full"
    preload: list[str] = Field(default_factory=list)  # modules imported once, before ranks are forked
    timeout_s: float = Field(default=300.0, ge=0)  # a cell; 0: none
    stall_after_s: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _every_cell_has_its_own_id(self) -> Matrix:
        seen: set[str] = set()
        for cell in self.cells():
            if cell.id in seen:
                raise ValueError(f"two cells would be called {cell.id}")
            seen.add(cell.id)
        return self

    def cells(self, repeat: int = 1) -> list[Cell]:
        """Every combination, the last axis fastest."""
        axes = {name: axis.labelled() for name, axis in self.axes.items()}
        combinations = itertools.product(*axes.values())
        cells = [self._cell(dict(zip(axes, chosen, strict=True))) for chosen in combinations]
        if repeat == 1:
            return cells
        return [cell.repeated(n) for cell in cells for n in range(1, repeat + 1)]

    def _cell(self, chosen: dict[str, tuple[str, Setting]]) -> Cell:
        settings = [setting for _, setting in chosen.values()]
        env = dict(self.env)
        for setting in settings:
            env.update(setting.env)
        sizes = [s.world_size for s in settings if s.world_size]
        return Cell(
            factors={name: label for name, (label, _) in chosen.items()},
            argv=[*shlex.split(self.command), *(word for s in settings for word in shlex.split(s.args))],
            env=env,
            world_size=sizes[-1] if sizes else self.world_size,
        )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One experiment."""

    factors: dict[str, str]
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    world_size: int = 1

    @property
    def id(self) -> str:
        """Names the directory as well, so a slash in a value becomes a dash."""
        return ",".join(f"{name}={value}" for name, value in self.factors.items()).replace("/", "-")

    def repeated(self, number: int) -> Cell:
        return Cell(
            factors={**self.factors, "repeat": str(number)},
            argv=self.argv,
            env=self.env,
            world_size=self.world_size,
        )

    def command(self) -> list[str]:
        """The same cell as a command to type."""
        return ["torchrun", "--standalone", "--nproc-per-node", str(self.world_size), *self.argv]


def find_spec(name: str) -> Path:
    """A path as given, or a name in configs/matrices, in the package or beside it. Raises UsageError."""
    here = Path(__file__).parent
    folders = (here / "configs", here.parent / "configs" / "matrices")
    candidates = [Path(name), *(folder / f"{name}.yaml" for folder in folders)]
    for path in candidates:
        if path.is_file():
            return path
    known = sorted({p.stem for folder in folders for p in folder.glob("*.yaml")})
    raise UsageError(
        f"no such matrix: {name}", f"give the path of a YAML file, or one of: {', '.join(known)}"
    )


def load_matrix(path: Path) -> Matrix:
    """Reads and checks a spec. Raises UsageError naming the key that is off."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML: {_yaml_problem(error)}", EXAMPLE_HINT) from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no mapping", EXAMPLE_HINT)
    try:
        return Matrix.model_validate(document)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from None
    except ValidationError as error:
        raise UsageError(f"{path}: {_problem(error)}", EXAMPLE_HINT) from None


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return f"line {mark.line + 1}: {problem}" if mark else problem


def _problem(error: ValidationError) -> str:
    """The most precise of pydantic's complaints, as `axes.layers.values: what is wrong`."""
    # Of the forms that a value may have, the one that went deepest is the one that was meant.
    first = max(error.errors(), key=lambda e: len(e["loc"]))
    place = ".".join(str(part) for part in first["loc"] if "[" not in str(part))
    problem = first["msg"].removeprefix("Value error, ")
    return f"{place}: {problem}" if place else problem


def select(cells: list[Cell], expression: str) -> list[Cell]:
    """Cells whose id satisfies a `-k` expression of substrings with and, or, not and brackets, as in pytest."""
    chosen = [cell for cell in cells if _Expression(expression).holds(cell.id)]
    if not chosen:
        raise UsageError(
            f"-k {expression!r} selects no cell", f"a cell is called, for example, {cells[0].id}"
        )
    return chosen


class _Expression:
    """Recursive descent over words; an expression that does not parse is a UsageError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens: Iterator[str] = iter(())
        self._next: str | None = None

    def holds(self, name: str) -> bool:
        self._tokens = iter(re.findall(r"[()]|[^\s()]+", self.text))
        self._advance()
        value = self._either(name)
        if self._next is not None:
            self._fail()
        return value

    def _advance(self) -> str | None:
        current, self._next = self._next, next(self._tokens, None)
        return current

    def _either(self, name: str) -> bool:
        value = self._both(name)
        while self._next == "or":
            self._advance()
            value = self._both(name) or value
        return value

    def _both(self, name: str) -> bool:
        value = self._one(name)
        while self._next == "and":
            self._advance()
            value = self._one(name) and value
        return value

    def _one(self, name: str) -> bool:
        token = self._advance()
        if token == "not":
            return not self._one(name)
        if token == "(":
            value = self._either(name)
            if self._advance() != ")":
                self._fail()
            return value
        if token in (None, ")", "and", "or"):
            self._fail()
        # A whole setting such as layers=1 must not also match layers=12.
        return token in name.split(",") if "=" in str(token) else str(token) in name

    def _fail(self) -> None:
        raise UsageError(f"-k: cannot read {self.text!r}", 'write for example -k "ddp and not layers=5"')
