"""All rules, found by walking this package, in an order of trial that follows from their declared edges; and their classes."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from graphlib import TopologicalSorter

from nsadiag.analysis import rules
from nsadiag.analysis.rules.rule import CAUSES, Rule


def discover() -> tuple[Rule, ...]:
    """Every Rule that a module of the package holds, by name. Raises ValueError where two have one name."""
    names = sorted(m.name for m in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}."))
    modules = [importlib.import_module(name) for name in names if name != __name__]
    found = [each for module in modules for each in vars(module).values() if isinstance(each, Rule)]
    by_name = {rule.name: rule for rule in found}
    if len(by_name) < len(found):
        raise ValueError(f"two rules have one name: {sorted(rule.name for rule in found)}")
    return tuple(by_name[name] for name in sorted(by_name))


def in_causal_order(found: Iterable[Rule]) -> tuple[Rule, ...]:
    """A rule after those that explain what it sees, by name where no edge decides. Raises ValueError for a circle."""
    by_name = {rule.name: rule for rule in sorted(found, key=lambda rule: rule.name)}
    for rule in by_name.values():
        if unknown := set(rule.explained_by) - set(by_name):
            raise ValueError(f"{rule.name} is explained by rules that are not there: {sorted(unknown)}")
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


def _explained_by(rule: Rule, among: Iterable[Rule]) -> set[str]:
    return {other.name for other in among if other.family in CAUSES[rule.family]} | set(rule.explained_by)


RULES = in_causal_order(discover())
# By class, in the order in which they are tried: what it says happened.
CLASSES = {cls: sentence for rule in RULES for cls, sentence in rule.means.items()}
