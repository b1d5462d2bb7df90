"""The order in which rules are tried, derived from the edges that they declare."""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import TopologicalSorter
from typing import Protocol, TypeVar

from nsadiag.analysis.rules.rule import CAUSES, Family


class Ordered(Protocol):
    """A rule, or its metadata."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> Family: ...
    @property
    def explained_by(self) -> tuple[str, ...]: ...
    @property
    def explains(self) -> tuple[str, ...]: ...


R = TypeVar("R", bound=Ordered)


def in_causal_order(found: Iterable[R]) -> tuple[R, ...]:
    """Each rule after those that explain its findings, by name where no edge decides. Raises ValueError for a cycle."""
    by_name = {rule.name: rule for rule in sorted(found, key=lambda rule: rule.name)}
    for rule in by_name.values():
        if unknown := {*rule.explained_by, *rule.explains} - set(by_name):
            raise ValueError(f"{rule.name} names rules that are not there: {sorted(unknown)}")
    sorter = TopologicalSorter(
        {name: _explained_by(rule, by_name.values()) for name, rule in by_name.items()}
    )
    sorter.prepare()
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order += ready
        sorter.done(*ready)
    return tuple(by_name[name] for name in order)


def _explained_by(rule: Ordered, among: Iterable[Ordered]) -> set[str]:
    """Those of families above it, and those of its own of which it or they say so."""
    above = {
        other.name for other in among if other.family in CAUSES[rule.family] or rule.name in other.explains
    }
    return above | set(rule.explained_by)
