"""Each template turns its example into what it promises, and writes Python that the example's formatting survives."""

from __future__ import annotations

import ast

import pytest

from nsadiag.repair.templates.registry import TEMPLATES
from nsadiag.repair.templates.template import Template
from nsadiag.repair.text import Module


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_the_first_proposal_for_an_example_is_the_promised_text(template: Template) -> None:
    example = template.example
    first = next(template.propose(Module(example.before, (example.line,))))
    assert first.text == example.after
    ast.parse(first.text)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.name)
def test_a_module_without_the_fault_has_no_proposal(template: Template) -> None:
    healthy = "import torch\n\nfor epoch in range(3):\n    print(epoch)\n"
    assert not list(template.propose(Module(healthy, (4,))))
