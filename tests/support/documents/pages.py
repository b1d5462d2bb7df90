"""The pages that repeat what rules, scripts and recordings say: `make docs` writes them anew."""

from __future__ import annotations

import io
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nsadiag.analysis.ingest.messages.table import FAMILIES
from nsadiag.analysis.rules.registry import CLASSES, RULES
from nsadiag.analysis.rules.rule import Rule
from nsadiag.analysis.tables import TABLES
from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands.faults import Fault, faults
from nsadiag.evidence.layout import write_json
from nsadiag.repair.change import Change
from nsadiag.repair.templates.registry import TEMPLATES
from nsadiag.reports import load_report, print_report
from nsadiag.reports.terminal.screen import Screen
from nsadiag.source.literals import docstring_of

from ..promises import code_lines
from ..recordings.golden import archive_of, unpack
from .keys import lists_of_keys

ROOT = Path(__file__).resolve().parents[3]
INDEX = ROOT / "docs" / "classes.md"
FOLDER = ROOT / "docs" / "classes"
README = ROOT / "README.md"
FACTS = ROOT / "docs" / "facts.md"
MESSAGES = ROOT / "docs" / "messages.md"
FIX = ROOT / "docs" / "fix.md"
CONTRACT = ROOT / "docs" / "contract.md"
SCRIPTS = ROOT / "repro" / "README.md"
# What stands between these lines is generated.
BEGIN, END = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
LONGEST_EXAMPLE = 160
COLUMNS = 100  # of a verdict on a page
# What a correct job keeps, by the relation of its rows.
RELATIONS = {
    "order": "Order and lifetime within a step: gradients are made, reduced and used once each",
    "copies": "Copies are equal on all ranks",
    "states": "What is taken is put back",
    "samples": "Each sample is read once",
}
FEW_RULES = 5  # of one class: of more, each has a section of its own
SIGHT = re.compile(r"On plain (?:torchrun|python): (.*?)(?:\.?\s*)(?:\n\n|\Z)", re.DOTALL)
WROTE = "  files   "  # the last line of a report, with a directory that is gone


def pages() -> dict[Path, str]:
    """Every generated page, by its path. Raises ValueError where a page has lost the marks of its generated part."""
    by_class: dict[str, list[Fault]] = {cls: [] for cls in CLASSES}
    for fault in faults():
        by_class[fault.classes[0]].append(fault)
    found = {FOLDER / f"{cls}.md": class_page(cls, shown) for cls, shown in by_class.items()}
    found[INDEX] = replaced(INDEX, "".join(_index()))
    found[SCRIPTS] = replaced(SCRIPTS, "".join(_script_table(by_class)))
    found[README] = replaced(README, _count(by_class))
    found[FACTS] = replaced(FACTS, "".join(_fact_tables()))
    found[MESSAGES] = replaced(MESSAGES, "".join(_messages()))
    found[FIX] = replaced(FIX, "".join(_templates()))
    found[CONTRACT] = replaced(CONTRACT, "".join(lists_of_keys()))
    return found


def replaced(page: Path, generated: str) -> str:
    """The page with its generated part replaced."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page.name} has no generated part")
    return f"{before}{begin}\n{generated}\n{end}{after}"


def _templates() -> Iterator[str]:
    """What each template does, and what it makes of its example."""
    for template in TEMPLATES:
        sentence = (sys.modules[template.propose.__module__].__doc__ or "").strip()
        diff = Change.of({"train.py": template.example.before}, {"train.py": template.example.after}).diff()
        yield f"**{template.name}**: {sentence}\n\n```diff\n{''.join(diff.splitlines(keepends=True)[2:])}```\n\n"


def _index() -> Iterator[str]:
    yield "| class | what happened |\n|---|---|\n"
    for cls, sentence in CLASSES.items():
        yield f"| [`{cls}`](classes/{cls}.md) | {sentence} |\n"


def _count(by_class: dict[str, list[Fault]]) -> str:
    scripts = sum(len(found) for found in by_class.values())
    return (
        f"nsadiag tells {len(CLASSES)} classes apart, each with [a page of its own](docs/classes.md): what it means, a short\n"
        f"script that has it, a real verdict, and the fix. [repro/](repro/README.md) has {scripts} such scripts.\n"
    )


def _script_table(by_class: dict[str, list[Fault]]) -> Iterator[str]:
    yield "| folder | scripts | what happens in them |\n|---|---|---|\n"
    for cls, found in by_class.items():
        if found:
            yield f"| `{cls}/` | {len(found)} | {_cell(CLASSES[cls])} ([scripts](../docs/classes/{cls}.md)) |\n"


def _fact_tables() -> Iterator[str]:
    """Each table of a case, with the meaning of its columns as the type of its rows has it."""
    for name, table in TABLES.items():
        yield f"## `{name}`\n\n{_sentence(table.says)}\n\n| column | |\n|---|---|\n"
        yield from (f"| `{column}` | {_cell(says)} |\n" for column, says in table.columns.items())
        yield "\n"


def _messages() -> Iterator[str]:
    """Each family of messages of logs, with the line that shows each, the fact that it makes, and who prints it."""
    for family, rows in FAMILIES.items():
        yield f"## {family}\n\n| example | fact | printed by |\n|---|---|---|\n"
        for row in rows:
            line = next(line for line in row.example.splitlines() if row.mark in line).strip()
            shown = line if len(line) <= LONGEST_EXAMPLE else f"{line[:LONGEST_EXAMPLE]} …"
            versions = f" ({row.versions})" if row.versions else ""
            yield f"| {_quoted(shown)} | {row.makes.__name__} | {_cell(row.source)}{versions} |\n"
        yield "\n"


def _quoted(text: str) -> str:
    quote = "``" if "`" in text else "`"
    pad = " " if quote == "``" else ""
    return f"{quote}{pad}{_cell(text)}{pad}{quote}"


def _cell(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")


def sight(fault: Fault) -> str:
    """A user's view of the failure without a tool. Raises ValueError for a script that does not say it."""
    docstring = docstring_of(fault.script.read_text()) or ""
    said = SIGHT.search(docstring.partition("\nPromise:\n")[0].strip())
    if not said:
        raise ValueError(
            f"{fault.script.name}: no paragraph of its docstring begins with `On plain torchrun:`"
        )
    return " ".join(said[1].split())


def class_page(cls: str, shown: list[Fault]) -> str:
    """One class: its meaning, a script, its verdict, the deciding evidence, its neighbours and the fix."""
    return "".join(_sections(cls, shown))


def _sections(cls: str, shown: list[Fault]) -> Iterator[str]:
    rules = sorted((r for r in RULES if cls in r.concludes), key=lambda rule: rule.name != cls)
    recorded = sorted(
        (f for f in shown if archive_of(f.name).exists()),
        # What takes a time limit is seen only where nobody stops the job earlier.
        key=lambda f: (bool(f.needs), bool(f.options), _length(f)),
    )
    yield f"# `{cls}`\n\n{CLASSES[cls]}\n"
    for fault in recorded[:1]:
        yield from _example(fault)
    if len(rules) > FEW_RULES:
        yield from _mechanisms(rules, shown)
    else:
        yield from _detection(cls, rules)
    neighbours = [c for c in dict.fromkeys(c for rule in rules for c in rule.confused_with) if c != cls]
    if neighbours:
        yield "\n## What it is confused with\n\n"
        yield from (f"- [`{other}`]({other}.md): {CLASSES[other]}\n" for other in neighbours)
    if shown and len(rules) <= FEW_RULES:
        yield "\n## Scripts that have it\n\n"
        yield from map(_script_line, shown)
    yield "\n[All classes](../classes.md)\n"


def _detection(cls: str, rules: list[Rule]) -> Iterator[str]:
    if fixes := list(dict.fromkeys(r.fix for r in rules if r.cls == cls and r.fix)):
        yield "\n## How to fix it\n\n"
        yield from (f"- {fix}\n" for fix in fixes)
    yield "\n## How it is detected\n\n"
    yield from (f"- [`{rule.name}`]({_source(rule)}): {_moved(_sentence(rule.detected))}\n" for rule in rules)


def _mechanisms(rules: list[Rule], shown: list[Fault]) -> Iterator[str]:
    """A section for each rule of a class that has many: reports name it as the verdict's mechanism."""
    yield f"\n## Mechanisms\n\nReports name one of these {len(rules)} beside the class, and `nsadiag analyze DIR --why-not MECHANISM`\n"
    yield "says why it was not concluded.\n"
    for relation, what in RELATIONS.items():
        named = sorted(rule.name for rule in rules if rule.keeps == relation)
        yield f"\n{what}: {', '.join(f'`{name}`' for name in named)}.\n"
    for rule in sorted(rules, key=lambda rule: rule.name):
        yield f"\n### `{rule.name}`\n\n{_moved(_sentence(rule.detected))} ([source]({_source(rule)}))\n"
        yield f"\n*Fix:* {rule.fix}\n" if rule.fix else ""
        if scripts := [fault for fault in shown if fault.mechanism == rule.name]:
            yield "\nScripts that have it:\n\n"
            yield from map(_script_line, scripts)


def _script_line(fault: Fault) -> str:
    return f"- [`{fault.script.name}`](../../repro/{fault.script.parent.name}/{fault.script.name}): {_sentence(fault.what)}\n"


def _example(fault: Fault) -> Iterator[str]:
    yield f"\n## A job that has it\n\n{_sentence(fault.what)} Without a tool one sees: {_sentence(sight(fault))}\n"
    yield f"\n```python\n{_code(fault.script)}```\n"
    yield f"\n`nsadiag demo {fault.name}` runs it. The verdict on its recording:\n\n```\n{verdict_on(fault.name)}```\n"


def verdict_on(name: str) -> str:
    """The terminal's report on a recording, judged now."""
    with tempfile.TemporaryDirectory() as folder:
        run = unpack(archive_of(name), Path(folder) / name)
        write_json(run.verdict, judge_directory(run.path).to_json())
        text = io.StringIO()
        print_report(
            load_report(run.path), Screen(file=text, width=COLUMNS, no_color=True, force_terminal=False)
        )
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "".join(f"{line}\n" for line in lines if not line.startswith(WROTE))


def _source(rule: Rule) -> str:
    return f"../../{rule.check.__module__.replace('.', '/')}.py"


def _moved(text: str) -> str:
    """Markdown written for docs/, one folder further down."""
    return re.sub(r"\]\((?!https?:)", "](../", text)


def _code(script: Path) -> str:
    """The script below its docstring."""
    return "\n".join(code_lines(script)).strip("\n") + "\n"


def _length(fault: Fault) -> int:
    return len(_code(fault.script).splitlines())


def _sentence(text: str) -> str:
    """With a capital, unless it opens with code, and a full stop."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def main() -> None:
    """Writes all pages, and removes those of classes that are gone."""
    found = pages()
    FOLDER.mkdir(exist_ok=True)
    for page in set(FOLDER.glob("*.md")) - set(found):
        page.unlink()
    for page, text in found.items():
        page.write_text(text)


if __name__ == "__main__":
    main()
