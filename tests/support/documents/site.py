"""The documentation as a site: pages staged as they lie in the checkout, and for each class the page of a recorded run.

python -m tests.support.documents.site            # into build/site; needs the extra `docs`
python -m tests.support.documents.site --stage    # the staged pages alone
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

import yaml

from nsadiag.analysis.rules import catalogue
from nsadiag.analysis.rules.registry import CLASSES
from nsadiag.analysis.verdict import judge_directory
from nsadiag.commands.faults import faults
from nsadiag.evidence.layout import write_json
from nsadiag.reports import load_report
from nsadiag.reports.formats.html import render_html

from ..recordings.golden import archive_of, unpack

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build"
# All that pages link to: links stay as they are in the checkout.
SHOWN = (
    "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "CITATION.cff", "constraints.txt", "docs",
    "changes", "repro", "configs", "nsa", "nsadiag", "artifacts", "benchmarks", "tests", "packaging", "skills",
)  # fmt: skip
SUFFIXES = {".md", ".py", ".yaml", ".txt", ".csv", ".png", ".svg", ".toml", ".cff", ".css", ""}


def stage(folder: Path, classes: list[str] | None = None) -> list[str]:
    """The site's sources in a folder; returns the classes that have a page of a run."""
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "--", *SHOWN],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for name in tracked:
        if Path(name).suffix in SUFFIXES and (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    shown = _gallery(folder, classes)
    for cls in shown:
        page = folder / "docs" / "classes" / f"{cls}.md"
        link = f"\n## The page of this run\n\n[{cls}.html](../../gallery/{cls}.html)\n"
        page.write_text(page.read_text() + link)
    (folder / "gallery.md").write_text(_overview(shown))
    return shown


def _gallery(folder: Path, classes: list[str] | None) -> list[str]:
    """The page of one recorded run of each class."""
    first = {
        cls: fault
        for fault in reversed(list(faults()))
        for cls in fault.classes[:1]
        if archive_of(fault.name).exists()
    }
    shown = [cls for cls in CLASSES if cls in first and (classes is None or cls in classes)]
    (folder / "gallery").mkdir()
    for cls in shown:
        with tempfile.TemporaryDirectory() as scratch:
            run = unpack(archive_of(first[cls].name), Path(scratch) / first[cls].name)
            write_json(run.verdict, judge_directory(run.path).to_json())
            # A link to the evidence would lead to what the site has not.
            (folder / "gallery" / f"{cls}.html").write_text(
                _without_links(render_html(load_report(run.path)))
            )
    return shown


def _overview(shown: list[str]) -> str:
    """The gallery: the pages themselves, small, in the groups of the menu. Their scripts do not run there."""
    parts = ["# Gallery", "Pages of real runs, one for each class, as `nsadiag` wrote them."]
    for group in menu():
        for title, pages in group.items():
            classes = [cls for page in pages for cls in page if cls in shown]
            if classes:
                figures = "\n".join(map(_figure, classes))
                parts += [f"## {title}", f'<div class="gallery">\n{figures}\n</div>']
    return "\n\n".join(parts) + "\n"


def _figure(cls: str) -> str:
    return (
        f'<figure><iframe src="gallery/{cls}.html" title="{cls}" loading="lazy" sandbox="" tabindex="-1" aria-hidden="true"></iframe>'
        f'<figcaption><a href="gallery/{cls}.html"><code>{cls}</code></a> {escape(CLASSES[cls])} '
        f'<a href="docs/classes/{cls}.html">more</a></figcaption></figure>'
    )


def _without_links(page: str) -> str:
    return page.replace('<a class="source" href=', '<a class="source" data-was=')


# Words for the families of rules, in the order of README's table.
MENU = {
    "exit": "A rank failed or is gone",
    "structure": "Ranks do not fit together",
    "divergence": "Ranks took different ways",
    "waiting": "Ranks wait for each other",
    "blocked": "A rank is blocked",
    "performance": "Slow",
    "correctness": "Wrong",
    "terminal": "Nothing found",
}


def menu() -> list[dict[str, list[dict[str, str]]]]:
    """The pages of classes in groups, as a reader looks for them."""
    families = {cls: entry.family for entry in catalogue.entries() for cls in entry.means}
    grouped: dict[str, list[dict[str, str]]] = {title: [] for title in MENU.values()}
    for cls in CLASSES:
        grouped[MENU[families[cls]]].append({cls: f"docs/classes/{cls}.md"})
    return [{title: pages} for title, pages in grouped.items() if pages]


def main() -> None:
    source = BUILD / "site-source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    shown = stage(source)
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    for entry in config["nav"]:
        if "Classes" in entry:
            entry["Classes"] += menu()
    config |= {"docs_dir": str(source), "site_dir": str(BUILD / "site")}
    (BUILD / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False))
    print(f"{len(shown)} pages of runs, {sum(1 for _ in source.rglob('*.md'))} pages in all")
    if "--stage" not in sys.argv:
        subprocess.run([sys.executable, "-m", "mkdocs", "build", "-f", BUILD / "mkdocs.yml"], check=True)


if __name__ == "__main__":
    main()
