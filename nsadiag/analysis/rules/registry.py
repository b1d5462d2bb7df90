"""All rules, found by walking this package, in causal order by their declared edges; and their classes."""

from __future__ import annotations

import importlib
import pkgutil

from nsadiag.analysis import rules
from nsadiag.analysis.rules.order import in_causal_order
from nsadiag.analysis.rules.rule import Rule


def discover() -> tuple[Rule, ...]:
    """Every Rule in a module of this package, or in a tuple of one, by name. Raises ValueError if two share a name."""
    names = sorted(m.name for m in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}."))
    modules = [importlib.import_module(name) for name in names if name != __name__]
    values = (value for module in modules for value in vars(module).values())
    listed = (each for value in values for each in (value if isinstance(value, tuple) else (value,)))
    found = [each for each in listed if isinstance(each, Rule)]
    by_name = {rule.name: rule for rule in found}
    if len(by_name) < len(found):
        raise ValueError(f"two rules have one name: {sorted(rule.name for rule in found)}")
    return tuple(by_name[name] for name in sorted(by_name))


RULES = in_causal_order(discover())
# By class, in the order in which they are tried: what happened.
CLASSES = {cls: sentence for rule in RULES for cls, sentence in rule.means.items()}
