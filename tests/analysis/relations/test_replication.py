"""Calls that show that ranks divide a model, and waits that show nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.tables import case_of, table

from nsadiag.analysis.relations.replication import has_parts
from nsadiag.evidence.ring.blackbox import Kind


@pytest.mark.parametrize(
    ("name", "group", "wrapped", "expected"),
    [
        ("all_reduce", "default_pg", True, False),
        ("all_reduce", "tp", True, True),
        ("all_to_all", "default_pg", False, True),
        ("work.wait", "", True, False),  # DDP's own, in a rehearsal
        ("work.wait", "", False, True),  # of a call through a group's own methods
    ],
)
def test_groups_of_their_own_are_parts_and_the_waits_of_a_wrapper_are_none(
    name: str, group: str, wrapped: bool, expected: bool
) -> None:
    rank = SimpleNamespace(ddp=[object()] if wrapped else [], units=[])
    events = table([{"kind": int(Kind.COLLECTIVE), "name": name, "group": group, "site": "train.py:3:main"}])
    cell = SimpleNamespace(ranks=[rank], world_size=2)
    assert has_parts(case_of(cell, events=events)) == expected
