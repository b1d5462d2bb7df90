"""The combinations of settings that a spec allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nsadiag.errors import UsageError
from nsadiag.spec.strict import label, nearest

Factors = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Space:
    """Every factor with its labels, the base that factors have unless something else is said, and what is left out."""

    axes: Mapping[str, tuple[str, ...]]
    base: Factors
    # Settings with a command of their own: other factors mean nothing to it, so they stay at their base.
    alone: frozenset[tuple[str, str]] = frozenset()
    excluded: tuple[Mapping[str, frozenset[str]], ...] = ()

    def without(self, patterns: Sequence[Mapping[str, object]]) -> Space:
        """The same with the combinations that match one of the patterns left out."""
        checked = [checked_pattern(pattern, self, "exclude") for pattern in patterns]
        excluded = tuple({name: frozenset(values) for name, values in p.items()} for p in checked)
        return replace(self, excluded=excluded)

    def allows(self, factors: Mapping[str, str]) -> bool:
        """Whether nothing in these factors, of which some may still be missing, is left out."""
        if not self.fits(factors):
            return False
        return not any(
            all(factors.get(name) in values for name, values in pattern.items()) for pattern in self.excluded
        )

    def fits(self, factors: Mapping[str, str]) -> bool:
        """Whether a setting that stands alone does."""
        single = [name for name, value in factors.items() if (name, value) in self.alone]
        return not single or all(factors[name] == self.base[name] for name in factors if name != single[0])

    def whole(self) -> list[Factors]:
        """Every combination that is allowed."""
        products = itertools.product(*self.axes.values())
        return [f for chosen in products if self.allows(f := dict(zip(self.axes, chosen, strict=True)))]

    def in_order(self, combinations: Iterable[Factors]) -> list[Factors]:
        """Each combination once, in the order of the axes and of their values."""
        places = {name: {value: at for at, value in enumerate(values)} for name, values in self.axes.items()}
        unique = {tuple(f[name] for name in self.axes): f for f in combinations}
        return sorted(unique.values(), key=lambda f: [places[name][f[name]] for name in self.axes])


def expand(patterns: Sequence[Mapping[str, object]], room: Space, what: str) -> list[Factors]:
    """The combinations that partial patterns mean: a list is each of its values, what is not named is at its base."""
    found = []
    for pattern in patterns:
        checked = checked_pattern(pattern, room, what)
        for chosen in itertools.product(*checked.values()):
            factors = {**room.base, **dict(zip(checked, chosen, strict=True))}
            if not room.fits(factors):
                raise UsageError(
                    f"{what}: {in_words(factors, room)} combines a setting that has a command of its own with others",
                    "a setting with `command` stands alone: leave every other factor at its base",
                )
            found.append(factors)
    return found


def checked_pattern(pattern: Mapping[str, object], room: Space, what: str) -> dict[str, tuple[str, ...]]:
    """Factor to labels; an error that names the nearest, where one is not known."""
    checked = {}
    for name, values in pattern.items():
        if name not in room.axes:
            raise UsageError(f"{what}: no axis is called {name!r}", nearest(name, list(room.axes)))
        labels = tuple(label(v) for v in (values if isinstance(values, list) else [values]))
        for value in labels:
            if value not in room.axes[name]:
                raise UsageError(f"{what}: {name} is never {value}", nearest(value, list(room.axes[name])))
        checked[name] = labels
    return checked


def in_words(factors: Mapping[str, str], room: Space) -> str:
    """`layers=5, parallel=ddp`: what differs from the base, or `the base`."""
    said = [f"{name}={value}" for name, value in factors.items() if room.base.get(name) != value]
    return ", ".join(said) or "the base"
