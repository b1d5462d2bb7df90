"""Settings that separate failing cells from healthy ones; refused where they were not varied independently.

Two cells that differ in one factor, one failing and one healthy, prove that this factor has a part: whatever
explains the failures must name it. Where the factors proven in this way tell all failing cells from all healthy
ones, they are the explanation, and the only one. Where they do not, several explanations fit: then the answer is
which, and the cells that would decide between them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

# Explanations by more factors than this at once need more cells than anybody runs.
MOST_FACTORS = 3
MOST_PROPOSED = 6

Factors = Mapping[str, str]
Rule = dict[str, tuple[str, ...]]  # factor to the settings with which it fails


@dataclass(frozen=True, kw_only=True)
class Observation:
    """All repeats of one cell: what they were, or None where they do not count or contradict each other."""

    factors: Factors
    ids: tuple[str, ...]
    kind: str | None  # "healthy", or the failure's class
    flaky: bool = False


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """The settings that one kind of failure depends on.

    `isolated`: on the factors named, each proven by a pair of cells. `confounded`: several explanations fit.
    `no control`: no healthy cell to compare with. `not separated`: no few factors tell failing from healthy.
    """

    cls: str
    cells: tuple[str, ...]
    status: str
    factors: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    # By factor: a failing cell and a healthy one, and their settings of it.
    pairs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    changes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    explanations: tuple[tuple[str, ...], ...] = ()  # of which each alone would do
    # settings of other factors that it fails with
    met: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    untried: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # and those it was never tried with
    propose: tuple[Factors, ...] = ()  # cells that would tell more

    def to_json(self) -> dict[str, object]:
        return {
            "class": self.cls, "status": self.status, "cells": list(self.cells), "factors": list(self.factors),
            "rules": [{name: list(v) for name, v in rule.items()} for rule in self.rules],
            "pairs": {name: list(pair) for name, pair in self.pairs.items()},
            "changes": {name: list(change) for name, change in self.changes.items()},
            "explanations": [list(e) for e in self.explanations],
            "met": {name: list(v) for name, v in self.met.items()},
            "untried": {name: list(v) for name, v in self.untried.items()},
            "propose": [dict(factors) for factors in self.propose],
        }  # fmt: skip


def attribute(
    axes: Mapping[str, Sequence[str]],
    observations: Sequence[Observation],
    allowed: Callable[[Factors], bool] = lambda factors: True,
    base: Factors | None = None,
) -> list[Attribution]:
    """One attribution a kind of failure, the most frequent first.

    `allowed`: whether a cell could be run. `base`: what factors are where nothing else is said.
    """
    healthy = [o for o in observations if o.kind == "healthy"]
    kinds: dict[str, list[Observation]] = {}
    for observation in observations:
        if observation.kind not in (None, "healthy"):
            kinds.setdefault(str(observation.kind), []).append(observation)
    seen = {_key(o.factors, axes) for o in observations}

    def fresh(factors: Factors) -> bool:
        return _key(factors, axes) not in seen and allowed(factors)

    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    return [_of_kind(cls, failing, healthy, axes, fresh, base or {}) for cls, failing in ordered]


def _of_kind(
    cls: str,
    failing: Sequence[Observation],
    healthy: Sequence[Observation],
    axes: Mapping[str, Sequence[str]],
    fresh: Callable[[Factors], bool],
    base: Factors,
) -> Attribution:
    cells = tuple(i for o in failing for i in o.ids)
    if not healthy:
        return Attribution(cls=cls, cells=cells, status="no control")
    pairs = _pairs(failing, healthy, list(axes))
    proven = tuple(name for name in axes if name in pairs)
    shown = {name: (f.ids[0], h.ids[0]) for name, (f, h) in pairs.items()}
    changes = {name: (f.factors[name], h.factors[name]) for name, (f, h) in pairs.items()}
    if proven and _separates(proven, failing, healthy):
        rules = _rules(proven, failing, healthy)
        met, untried = _met(rules, failing, axes), _untried(rules, failing, axes)
        unlike = {name: v for name, v in untried.items() if not base or met.get(name) != (base[name],)}
        return Attribution(
            cls=cls, cells=cells, status="isolated", factors=proven, rules=rules, pairs=shown, changes=changes, met=met, untried=untried,
            propose=tuple(_into_the_untried(rules, unlike, failing, fresh, base)),
        )  # fmt: skip
    varied = [name for name in axes if len({o.factors[name] for o in (*failing, *healthy)}) > 1]
    explanations = _explanations(proven, varied, failing, healthy)
    doubtful = [name for name in axes if any(name in e for e in explanations) and name not in proven]
    return Attribution(
        cls=cls, cells=cells, status="confounded" if explanations else "not separated",
        factors=proven, pairs=shown, changes=changes, explanations=explanations,
        propose=tuple(_that_pull_apart(doubtful or varied, failing, healthy, fresh)),
    )  # fmt: skip


def _key(factors: Factors, axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(factors[name] for name in axes)


def _pairs(
    failing: Sequence[Observation], healthy: Sequence[Observation], axes: Sequence[str]
) -> dict[str, tuple[Observation, Observation]]:
    """By factor the first failing and healthy cells that differ in it and nothing else."""
    found: dict[str, tuple[Observation, Observation]] = {}
    for name in axes:
        others = [other for other in axes if other != name]
        good = {_key(o.factors, others): o for o in reversed(healthy)}
        for bad in failing:
            if twin := good.get(_key(bad.factors, others)):
                found.setdefault(name, (bad, twin))
    return found


def _separates(names: Sequence[str], failing: Sequence[Observation], healthy: Sequence[Observation]) -> bool:
    return not {_key(o.factors, names) for o in failing} & {_key(o.factors, names) for o in healthy}


def _explanations(
    proven: Sequence[str],
    varied: Sequence[str],
    failing: Sequence[Observation],
    healthy: Sequence[Observation],
) -> tuple[tuple[str, ...], ...]:
    """The smallest sets of factors that tell failing from healthy; each has all that are proven."""
    others = [name for name in varied if name not in proven]
    found: list[set[str]] = []
    for size in range(1, max(1, MOST_FACTORS - len(proven)) + 1):
        for more in itertools.combinations(others, size):
            names = {*proven, *more}
            if not any(smaller <= names for smaller in found) and _separates(sorted(names), failing, healthy):
                found.append(names)
    return tuple(tuple(name for name in varied if name in names) for names in found)


def _rules(
    names: Sequence[str], failing: Sequence[Observation], healthy: Sequence[Observation]
) -> tuple[Rule, ...]:
    """The fewest settings of these factors that some failing cells and no healthy cell have, alike ones joined."""
    bad = {tuple(o.factors[n] for n in names) for o in failing}
    good = {tuple(o.factors[n] for n in names) for o in healthy}
    needed: dict[frozenset[tuple[int, str]], None] = {}
    for values in sorted(bad):
        places = list(enumerate(values))
        for size in range(1, len(places) + 1):
            pure = [p for p in itertools.combinations(places, size) if not any(_has(g, p) for g in good)]
            if pure:
                needed.update((frozenset(p), None) for p in pure)
                break
    chosen = _fewest(list(needed), bad)
    return _joined([{names[at]: (value,) for at, value in sorted(rule)} for rule in chosen])


def _has(values: tuple[str, ...], places: Iterable[tuple[int, str]]) -> bool:
    return all(values[at] == value for at, value in places)


def _fewest(
    candidates: list[frozenset[tuple[int, str]]], bad: set[tuple[str, ...]]
) -> list[frozenset[tuple[int, str]]]:
    """Few rules that together explain all: always the one that explains most of what is left."""
    left, chosen = set(bad), []
    while left:
        best = max(candidates, key=lambda rule: (sum(_has(b, rule) for b in left), -len(rule)))
        chosen.append(best)
        left = {b for b in left if not _has(b, best)}
    return chosen


def _joined(rules: list[Rule]) -> tuple[Rule, ...]:
    """Rules that differ in the settings of one factor become one rule with all of these settings."""
    for first, second in itertools.combinations(rules, 2):
        apart = [n for n in first if n in second and first[n] != second[n]]
        if set(first) == set(second) and len(apart) == 1:
            both = {**first, apart[0]: tuple(dict.fromkeys((*first[apart[0]], *second[apart[0]])))}
            return _joined([both, *(r for r in rules if r not in (first, second))])
    return tuple(rules)


def _untried(
    rules: Sequence[Rule], failing: Sequence[Observation], axes: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Settings of other factors with which some rule was never tried: there it says nothing."""
    lacking: dict[str, dict[str, None]] = {}
    for rule in rules:
        matching = [o for o in failing if all(o.factors[n] in values for n, values in rule.items())]
        for name, values in axes.items():
            met = {o.factors[name] for o in matching}
            if name not in rule:
                lacking.setdefault(name, {}).update(dict.fromkeys(v for v in values if v not in met))
    return {name: tuple(values) for name, values in lacking.items() if values}


def _met(
    rules: Sequence[Rule], failing: Sequence[Observation], axes: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Settings of factors that no rule names, with which it fails as well."""
    named = {name for rule in rules for name in rule}
    seen = {name: {o.factors[name] for o in failing} for name in axes if name not in named}
    return {name: tuple(v for v in axes[name] if v in values) for name, values in seen.items()}


def _into_the_untried(
    rules: Sequence[Rule],
    untried: Mapping[str, Sequence[str]],
    failing: Sequence[Observation],
    fresh: Callable[[Factors], bool],
    base: Factors,
) -> list[Factors]:
    """For each untried setting a failing cell with nothing else changed; of a factor never at its base, that one."""
    groups = [
        [changed for o in failing if _fits(changed := {**o.factors, name: value}, rules)]
        for name, values in untried.items()
        for value in values
        if value == base.get(name, value)
    ]
    return _one_of_each(groups, fresh)


def _fits(factors: Factors, rules: Sequence[Rule]) -> bool:
    return any(all(factors[name] in values for name, values in rule.items()) for rule in rules)


def _that_pull_apart(
    doubtful: Sequence[str],
    failing: Sequence[Observation],
    healthy: Sequence[Observation],
    fresh: Callable[[Factors], bool],
) -> list[Factors]:
    """For each doubtful factor a failing cell in which it alone is as in healthy cells."""
    groups = []
    for name in doubtful:
        good = dict.fromkeys(o.factors[name] for o in healthy)
        groups.append([{**o.factors, name: v} for o in failing for v in good if v != o.factors[name]])
    return _one_of_each(groups, fresh)


def _one_of_each(groups: Sequence[Sequence[Factors]], fresh: Callable[[Factors], bool]) -> list[Factors]:
    """The first cell of each group that can be run and was not, no two alike, a few."""
    chosen: dict[tuple[str, ...], Factors] = {}
    for group in groups:
        first = next((factors for factors in group if fresh(factors)), None)
        if first is not None:
            chosen.setdefault(tuple(first.values()), first)
    return list(chosen.values())[:MOST_PROPOSED]
