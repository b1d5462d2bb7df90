"""A rank whose transfers are compared with those of its own earlier rounds, in paths that real processes record."""

from __future__ import annotations

from pathlib import Path

from support.processes.recorded_paths import record, walked

from nsadiag.analysis.paths.chain import Chains
from nsadiag.analysis.paths.partings import Alignment
from nsadiag.analysis.paths.rounds import own_rounds
from nsadiag.analysis.paths.telling import told
from nsadiag.analysis.paths.walk import Walk
from nsadiag.evidence.records import Because
from nsadiag.source.model import SourceModel

LEFT_OUT = """values = [1, 2, 3, 4, 4, 5]
def share(step):
    changed = step == 0 or values[step] != values[step - 1]
    if changed:
        call("send", "float32[1]")
for step in range(6):
    call("all_reduce", "float32[8]")
    share(step)
"""
PADDING = """def train(step):
    for batch in [8, 8, 8 if step < 4 else 0]:
        if not batch:
            continue
        call("send", f"float32[{batch}]")
for step in range(7):
    train(step)
"""
SHORTER = """for step in range(5):
    rows = 8 if step < 4 else 3
    call("recv", f"float32[{rows}]")
"""
ALIKE = """for step in range(5):
    if step % 2: print(step)
    call("send", "float32[8]")
"""
LEAVES = """import os
rank = int(os.environ["RANK"])
blocks = range([4, 7][rank])
for block in blocks:
    call("send", "float32[1]")
    if rank and block == 4: os.kill(os.getpid(), 9)
call("barrier")
os.kill(os.getpid(), 9)
"""
SIZES = """for step in range(6):
    call("send", f"float32[{step}]")
"""
RARE = """for step in range(12):
    call("send", "float32[8]")
    if step % 3 == 2: call("send", "float32[1]")
"""


def because(folder: Path, source: str) -> Because | None:
    code, walk = SourceModel({}), Walk(0, walked(record(folder, source)))
    compared = own_rounds(code, walk)
    chains = Chains(code, compared) if compared else None
    chain = chains.chain() if chains else ()
    return told({0: walk}, compared, chains, chain) if compared and chains and chain else None


def test_the_round_that_leaves_a_message_out_parts_at_its_condition(tmp_path: Path) -> None:
    found = because(tmp_path, LEFT_OUT)
    assert found is not None
    assert (found.line, found.chain[0].because) == (
        4,
        "`if changed` held on rank 0 (round 4) and not on rank 0 (round 5)",
    )
    # The number of the round, which comes from the loop, explains nothing.
    assert [link.at.line for link in found.chain] == [4, 3]


def test_the_first_of_several_such_rounds_is_the_one(tmp_path: Path) -> None:
    found = because(tmp_path, PADDING)
    assert found is not None and found.line == 3
    assert "(round 5)" in found.chain[0].because and "(round 4)" in found.chain[0].because


def test_a_message_of_another_size_goes_back_to_who_wrote_the_size(tmp_path: Path) -> None:
    found = because(tmp_path, SHORTER)
    assert found is not None and found.line == 2


def test_a_loop_that_one_rank_leaves_sooner_is_told_by_it(tmp_path: Path) -> None:
    code = SourceModel({})
    a, b = (Walk(r, walked(record(tmp_path, LEAVES, rank=r))) for r in (0, 1))
    assert own_rounds(code, a) is None
    compared = Alignment(code, a, b).compared()
    links = Chains(code, compared).of_another_way()
    assert [found.at[1] for found in links][:2] == [4, 3]


def test_rounds_that_transfer_alike_tell_nothing(tmp_path: Path) -> None:
    assert because(tmp_path, ALIKE) is None
    assert because(tmp_path, SIZES) is None


def test_what_was_done_in_a_round_before_is_no_news(tmp_path: Path) -> None:
    found = because(tmp_path, RARE)
    assert found is None or "(round 3)" in found.chain[0].because
