"""Each template turns its example into what it promises, and writes Python that the example's formatting survives."""

from __future__ import annotations

import ast

import pytest

from nsadiag.repair.templates.branches import hoist
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


def test_what_is_printed_is_computed_by_all_and_printed_by_one() -> None:
    before = "def main(loop, rank, epoch):\n    if epoch % 2 == 1 and rank == 0:\n        print(loop.report(epoch), flush=True)\n"
    after = (
        "def main(loop, rank, epoch):\n    if epoch % 2 == 1:\n        result_of_all = loop.report(epoch)\n"
        "        if rank == 0:\n            print(result_of_all, flush=True)\n"
    )
    first = next(hoist.propose(Module(before, (3,))))
    assert first.text == after


def test_a_function_that_writes_goes_on_on_one_rank_behind_its_call() -> None:
    before = (
        "import torch.distributed as dist\n\ndef save(parts):\n    dist.all_gather_object(parts, 1)\n    write(parts)\n\n"
        "def main(rank):\n    if rank == 0:\n        save([None])\n"
    )
    texts = [proposal.text for proposal in hoist.propose(Module(before, (4, 9)))]
    wanted = "    dist.all_gather_object(parts, 1)\n    if dist.get_rank() == 0:\n        write(parts)\n"
    assert any(
        wanted in text and "    save([None])\n    if rank == 0:\n        pass\n" in text for text in texts
    )
