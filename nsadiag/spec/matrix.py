"""A matrix of experiments: what a spec file holds, and the cells that it comes to."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

from pydantic import Field, model_validator

from nsadiag.errors import UsageError
from nsadiag.spec.cell import Cell
from nsadiag.spec.hypothesis import Hypothesis, Scalar, Trial, combinations_needed, trials_of
from nsadiag.spec.parity import Parity
from nsadiag.spec.space import Space, expand
from nsadiag.spec.strict import Words, label, nearest

REPRO = "{repro}"  # in a command: where the scripts of repro/ are
Strategy: TypeAlias = Literal["all", "pairwise", "hypotheses"]


def checked_strategy(text: str | None) -> Strategy | None:
    """The strategy of that name; None stays None: as the spec says. UsageError on any other."""
    known = get_args(Strategy)
    if text is None or text in known:
        return cast("Strategy | None", text)
    raise UsageError(f"--strategy is {text!r}", nearest(text, list(known)))


class Setting(Words):
    """The contribution of one value of an axis to a cell."""

    args: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    world_size: int | None = Field(default=None, ge=1)
    command: str | None = Field(default=None, min_length=1)  # of its own: such a value stands alone
    timeout_s: float | None = Field(default=None, ge=0)
    gpus: int = Field(default=0, ge=0)  # that it cannot do without: skipped where there are fewer


class Axis(Words):
    """One factor. `values` is a list, put into `args` and `env` as {value}, or a mapping of labels to settings."""

    values: list[Scalar] | dict[str, Setting] = Field(min_length=1)
    args: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    base: Scalar = None  # what the factor is where nothing else is said; null: the first value

    @functools.cached_property
    def settings(self) -> dict[str, Setting]:
        """Label to setting, in the order given."""
        if isinstance(self.values, dict):
            return self.values
        return {label(v): self._filled(label(v)) for v in self.values}

    def labels(self) -> list[str]:
        """One for each value, as they are given: twice the same where a value is there twice."""
        return list(self.values) if isinstance(self.values, dict) else [label(v) for v in self.values]

    def base_label(self) -> str:
        """The label of the value that the factor has where nothing else is said."""
        return self.labels()[0] if self.base is None else label(self.base)

    @model_validator(mode="after")
    def _base_is_a_value(self) -> Axis:
        if self.base_label() not in self.labels():
            raise ValueError(f"base is {self.base_label()}, which is none of the values")
        return self

    def _filled(self, value: str) -> Setting:
        env = {name: text.replace("{value}", value) for name, text in self.env.items()}
        return Setting(args=self.args.replace("{value}", value), env=env)


class Matrix(Words):
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
    scale: list[str] = Field(default_factory=list)  # axes that are sizes; none named: told by their values
    alone: bool = False  # no cell runs beside another
    strategy: Strategy = "all"
    strength: int = Field(default=2, ge=1)  # of `pairwise`: the settings of so many factors meet in some cell
    include: list[dict[str, Scalar | list[Scalar]]] = Field(default_factory=list)
    exclude: list[dict[str, Scalar | list[Scalar]]] = Field(default_factory=list)
    repeat: int = Field(default=1, ge=1)
    hypotheses: list[Hypothesis] = Field(default_factory=list)
    parity: Parity | None = None

    @model_validator(mode="after")
    def _parity_names_settings(self) -> Matrix:
        if self.parity is not None:
            self.parity.check(self.space())
        return self

    @model_validator(mode="after")
    def _scale_names_axes(self) -> Matrix:
        for name in self.scale:
            if name not in self.axes:
                raise ValueError(f"scale names {name}, and there is no such axis")
        return self

    @model_validator(mode="after")
    def _every_cell_has_its_own_id(self) -> Matrix:
        for name, axis in self.axes.items():
            if twice := [value for value, count in Counter(axis.labels()).items() if count > 1]:
                raise ValueError(f"{name}={twice[0]} is there twice")
        seen: set[str] = set()
        for cell in self.cells(repeat=1):
            if cell.id in seen:
                raise ValueError(f"two cells would be called {cell.id}")
            seen.add(cell.id)
        return self

    def cells(
        self, repeat: int | None = None, strategy: Strategy | None = None, strength: int | None = None
    ) -> list[Cell]:
        """The cells that the strategy chooses, in the order of the axes, the last axis fastest."""
        chosen = self._combinations(strategy or self.strategy, strength or self.strength)
        times = repeat or self.repeat
        cells = [self.cell(factors) for factors in chosen]
        if times == 1:
            return cells
        return [cell.repeated(n) for cell in cells for n in range(1, times + 1)]

    def trials(self, cells: list[Cell]) -> list[list[Trial]]:
        """For each hypothesis its trials among these cells."""
        return [trials_of(hypothesis, self.space(), cells) for hypothesis in self.hypotheses]

    def _combinations(self, strategy: Strategy, strength: int) -> list[dict[str, str]]:
        room = self.space()
        asked = [*expand(self.include, room, "include"), *combinations_needed(self.hypotheses, room)]
        if strategy == "all":
            asked += room.whole()
        elif strategy == "pairwise":
            from nsadiag.spec.covering import covering_array

            asked += covering_array(room, strength, asked)
        elif not asked:
            asked = [room.base]
        return room.in_order(asked)

    def space(self) -> Space:
        """The combinations that are allowed."""
        axes = {name: axis.settings for name, axis in self.axes.items()}
        room = Space(
            axes={name: tuple(axis.labels()) for name, axis in self.axes.items()},
            base={name: axis.base_label() for name, axis in self.axes.items()},
            alone=frozenset((n, v) for n, settings in axes.items() for v, s in settings.items() if s.command),
        )
        return room.without(self.exclude)

    def cell(self, factors: dict[str, str]) -> Cell:
        """The cell with these factors, all of them."""
        settings = [self.axes[name].settings[value] for name, value in factors.items()]
        env = dict(self.env)
        for setting in settings:
            env.update(setting.env)
        own = next((s for s in settings if s.command), None)
        return Cell(
            factors=factors,
            argv=[word.replace(REPRO, scripts()) for word in self._argv(settings, own)],
            env=env,
            world_size=next((s.world_size for s in reversed(settings) if s.world_size), self.world_size),
            timeout_s=max((s.timeout_s for s in settings if s.timeout_s is not None), default=self.timeout_s),
            gpus=max(s.gpus for s in settings),
            # With a dozen axes nearly all are at their base, and a directory's name has 255 bytes.
            unsaid=frozenset(n for n, v in factors.items() if self.axes[n].base_label() == v)
            if self.strategy == "hypotheses"
            else frozenset(),
        )

    def _argv(self, settings: list[Setting], own: Setting | None) -> list[str]:
        if own:
            return shlex.split(f"{own.command} {own.args}")
        return [*shlex.split(self.command), *(word for s in settings for word in shlex.split(s.args))]


def scripts() -> str:
    """The directory of the scripts that come with nsadiag, as one would type it here."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "repro"
    folder = installed if installed.is_dir() else package.parent / "repro"
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
