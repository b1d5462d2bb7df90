"""Links of the page that open a line in the reader's editor."""

from __future__ import annotations

import pytest

from nsadiag.errors import UsageError
from nsadiag.reports.formats.editors import VARIABLE, check, link_to


@pytest.mark.parametrize(
    ("editor", "address"),
    [
        ("", ""),
        ("vscode", "vscode://file/job/a%20b.py:7"),
        ("pycharm", "pycharm://open?file=/job/a%20b.py&line=7"),
        ("vim://{file}:{line}", "vim:///job/a%20b.py:7"),
        ("javascript:alert('{file}')", ""),
        ("https://elsewhere/{file}", ""),
        ("nano", ""),
    ],
)
def test_only_an_editor_that_was_named_gets_a_link(
    monkeypatch: pytest.MonkeyPatch, editor: str, address: str
) -> None:
    monkeypatch.setenv(VARIABLE, editor)
    assert link_to("/job/a b.py", 7) == address
    assert link_to("a b.py", 7) == "", "nobody knows where that is"


@pytest.mark.parametrize(("editor", "hint"), [("vscod", "vscode"), ("javascript:{file}", "pattern such as")])
def test_what_is_no_editor_is_refused(editor: str, hint: str) -> None:
    assert check("cursor") == "cursor"
    with pytest.raises(UsageError) as raised:
        check(editor)
    assert hint in raised.value.hint
