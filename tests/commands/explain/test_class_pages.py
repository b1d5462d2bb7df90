"""`nsadiag explain`: every name that a verdict may show has its page."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from nsadiag.analysis.rules.registry import CLASSES, RULES
from nsadiag.cli.main import app
from nsadiag.commands.explain.class_pages import page_of
from nsadiag.errors import UsageError


@pytest.mark.parametrize("name", sorted({*CLASSES, *(rule.name for rule in RULES)}))
def test_every_class_and_mechanism_has_a_page(name: str) -> None:
    page = page_of(name)
    assert page.startswith("# `") and f"`{name}`" in page and not re.search(r"\]\(\S+\.md", page)


def test_a_name_that_is_not_there_gets_the_nearest_one() -> None:
    with pytest.raises(UsageError) as refused:
        page_of("mising_rank")
    assert refused.value.hint == "did you mean missing_rank?"


def test_a_pipe_gets_the_page_as_it_is() -> None:
    shown = CliRunner().invoke(app, ["explain", "missing_rank"], catch_exceptions=False).stdout
    assert shown == page_of("missing_rank")
