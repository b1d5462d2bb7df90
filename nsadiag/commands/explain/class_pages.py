"""`nsadiag explain`: the page of a class or of a mechanism, which comes with the package."""

from __future__ import annotations

import re
from pathlib import Path

from rich.markdown import Markdown as Laid

from nsadiag.errors import UsageError, did_you_mean
from nsadiag.reports.terminal.screen import Screen

MECHANISM = re.compile(r"^### `(?P<name>\w+)`$", re.MULTILINE)
# Links lead to other pages: a terminal has none.
LINK = re.compile(r"\[([^\]]*)\]\([^)\s]*\)")


def page_of(word: str) -> str:
    """The Markdown page of a class, or of a mechanism its section under the class's first lines. Raises UsageError."""
    pages = {path.stem: path for path in sorted(folder().glob("*.md"))}
    name = word.strip("`").replace("-", "_")
    if name in pages:
        return LINK.sub(r"\1", pages[name].read_text(encoding="utf-8"))
    sections: dict[str, str] = {}
    for path in pages.values():
        text = path.read_text(encoding="utf-8")
        for each in MECHANISM.finditer(text):
            if each["name"] == name:
                return LINK.sub(r"\1", f"{_head(text)}\n\n{_section(text, each)}")
            sections[each["name"]] = path.stem
    if page := _of_rule(name):
        return page
    hint = (
        did_you_mean(name, [*pages, *sections]) or "nsadiag list shows the classes; reports name mechanisms"
    )
    raise UsageError(f"no class or mechanism: {word}", hint)


def folder() -> Path:
    """With the pages: in the wheel, or in the checkout."""
    package = Path(__file__).resolve().parents[2]
    installed = package / "classes"
    return installed if installed.is_dir() else package.parent / "docs" / "classes"


def _of_rule(name: str) -> str | None:
    """The page of a rule by its own words: one that concludes classes of others is on no page."""
    from nsadiag.analysis.rules.registry import CLASSES, RULES

    rule = next((rule for rule in RULES if rule.name == name), None)
    if rule is None:
        return None
    meant = "\n".join(f"- `{cls}`: {CLASSES[cls]}" for cls in rule.concludes)
    advice = f"\n\n*Fix:* {rule.fix}" if rule.fix else ""
    return LINK.sub(r"\1", f"# `{name}`\n\nIt concludes:\n\n{meant}\n\n{rule.detected}{advice}\n")


def _head(text: str) -> str:
    """Title and first paragraph."""
    return "\n\n".join(text.split("\n\n", 2)[:2])


def _section(text: str, found: re.Match[str]) -> str:
    """The section under this heading, up to the next one."""
    rest = text[found.end() :]
    end = re.search(r"^##", rest, re.MULTILINE)
    return found[0] + rest[: end.start() if end else len(rest)].rstrip() + "\n"


def show(page: str, console: Screen) -> None:
    """Laid out in a terminal; as it is in a pipe."""
    if console.is_terminal and not console.options.ascii_only:
        console.print(Laid(page))
    else:
        console.write(page if page.endswith("\n") else f"{page}\n")
