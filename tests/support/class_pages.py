"""docs/classes.md from the rules themselves: `python -m tests.support.class_pages` writes it anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nsadiag.analysis.rules.registry import CLASSES, RULES
from nsadiag.analysis.rules.rule import Rule
from nsadiag.commands.faults import faults

PAGE = Path(__file__).parents[2] / "docs" / "classes.md"
# What stands between these lines is generated.
BEGIN, END = "<!-- rules: begin -->\n", "<!-- rules: end -->\n"


def with_classes(page: str) -> str:
    """The page with its generated part as the rules now have it. Raises ValueError where its marks are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no generated part")
    return "".join((before, begin, "\n", *_sections(), end, after))


def _sections() -> Iterator[str]:
    scripts: dict[str, list[str]] = {}
    for fault in faults():
        scripts.setdefault(fault.classes[0], []).append(fault.script.name)
    for cls, sentence in CLASSES.items():
        rules = [rule for rule in RULES if cls in rule.concludes]
        yield f"### `{cls}`\n\n{sentence}\n\n"
        yield from _detection(cls, rules)
        confused = [
            c for c in dict.fromkeys(other for rule in rules for other in rule.confused_with) if c != cls
        ]
        if confused:
            yield f"- **Confused with:** {', '.join(f'[`{c}`](#{c})' for c in confused)}\n"
        yield from (
            f"- **Fix:** {fix}\n" for fix in dict.fromkeys(r.fix for r in rules if r.cls == cls and r.fix)
        )
        shown = ", ".join(f"[`{name}`](../repro/{name})" for name in scripts.get(cls, ()))
        yield f"- **Shown by:** {shown}\n\n" if shown else "\n"


def _detection(cls: str, rules: list[Rule]) -> Iterator[str]:
    """The rule that has the class's name first."""
    for rule in sorted(rules, key=lambda rule: rule.name != cls):
        yield f"- **Detected** (`{rule.name}`): {rule.detected}\n"


if __name__ == "__main__":
    PAGE.write_text(with_classes(PAGE.read_text()))
