"""The site's sources: everything that a page links to is staged with it, and each class has the page of a run."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from support.documents.site import ROOT, menu, stage

from nsadiag.analysis.rules.registry import CLASSES

LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")


def test_what_is_staged_is_whole(tmp_path: Path) -> None:
    shown = stage(tmp_path, ["local_lock_deadlock", "rank_killed"])
    assert (
        shown == [cls for cls in ("rank_killed", "local_lock_deadlock") if cls in shown] and len(shown) == 2
    )
    pages = list(tmp_path.rglob("*.md"))
    missing = [
        f"{page.relative_to(tmp_path)}: {link}"
        for page in pages
        for link in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL))
        if not (page.parent / link).exists()
    ]
    assert missing == []
    gallery = (tmp_path / "gallery" / "rank_killed.html").read_text()
    assert "<svg" in gallery and not re.search(r'<a class="source" href', gallery)
    overview = (tmp_path / "gallery.md").read_text()
    assert re.findall(r'<iframe src="gallery/(\w+)\.html"', overview) == shown
    assert (tmp_path / "docs" / "site.css").is_file()
    assert "gallery/rank_killed.html" in (tmp_path / "docs" / "classes" / "rank_killed.md").read_text()


def test_every_page_that_the_site_lists_is_there() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def listed(entries: list[object]) -> list[str]:
        found: list[str] = []
        for entry in entries:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                found += listed(value) if isinstance(value, list) else [str(value)]
        return found

    pages = set(listed(config["nav"])) - {"gallery.md"}
    assert [page for page in sorted(pages) if not (ROOT / page).is_file()] == []
    # Nothing is loaded from elsewhere.
    assert config["theme"]["font"] is False and config["plugins"] == ["search"]


def test_the_menu_has_every_class_once_in_a_group() -> None:
    groups = [(title, page) for group in menu() for title, pages in group.items() for page in pages]
    assert sorted(cls for _, page in groups for cls in page) == sorted(CLASSES)
    assert ("A rank is blocked", {"io_stall": "docs/classes/io_stall.md"}) in groups
