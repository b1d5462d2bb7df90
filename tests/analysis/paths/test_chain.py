"""Recorded paths of ranks side by side: the line that parted them, and what it goes back to."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.processes.recorded_paths import walks

from nsadiag.analysis.paths.chain import Chains
from nsadiag.analysis.paths.partings import Alignment, Compared
from nsadiag.analysis.paths.telling import told
from nsadiag.evidence.records import Because
from nsadiag.source.model import SourceModel

HEAD = "import os\nrank = int(os.environ['RANK'])\n"
RANK_BRANCH = f"""{HEAD}
for step in range(3):
    call("all_reduce")
    if step == 2 and rank == 0:
        call("broadcast")
call("barrier")
"""
OWN_DATA = f"""{HEAD}
class Stopper:
    def __init__(self): self.bad, self.stop = 0, False
    def see(self, loss):
        self.bad = self.bad + 1 if loss > 1 else 0
        if self.bad >= 2: self.stop = True
def losses():
    return [2.0, 2.0, 2.0] if rank else [0.5, 0.5, 0.5]
def main():
    stopper = Stopper()
    for loss in losses():
        call("all_reduce")
        stopper.see(loss)
        if stopper.stop:
            break
    call("barrier", 1)
main()
"""
SHORTER = f"""{HEAD}
def shard():
    return list(range(3 + rank))
for batch in shard():
    call("all_reduce")
call("barrier")
"""
SWALLOWED = f"""{HEAD}
def read(n):
    if n == 1 and rank == 1:
        raise OSError(n)
    return n
for n in range(3):
    try:
        read(n)
    except OSError:
        continue
    call("all_reduce", n)
"""
EXHAUSTED = f"""{HEAD}
shard = [1, 2] if rank else [1, 2, 3]
feed = iter(shard)
while True:
    try:
        batch = next(feed)
    except StopIteration:
        break
    call("all_reduce")
call("barrier")
"""
# As libraries decorate what the main rank alone is to do.
DECORATED = f"""{HEAD}
library = "def on_main(function): return lambda *given: function(*given) if rank == 0 else None"
exec(compile(library, "/usr/lib/python3/site-packages/library.py", "exec"), globals())
@on_main
def publish(values):
    call("all_reduce")
values = [rank] * 3
publish(values)
call("barrier")
"""
OTHER_ROOT = f"""{HEAD}
scores = [1.0, 2.0] if rank else [2.0, 1.0]
best = scores.index(max(scores))
call("broadcast", best)
"""
MAIN_PRINTS = f"""{HEAD}
for step in range(3):
    call("all_reduce")
    if rank == 0:
        print(step)
"""
LATE = f"""{HEAD}
for step in range(4):
    if step == 3 and rank == 1: os.kill(os.getpid(), 9)
    call("all_reduce")
"""


ROLE = f"""{HEAD}
messages = iter([1, 2, None])
for round in range(9):
    if rank == 0:
        message = next(messages)
        if message is None:
            break
    call("broadcast")
call("all_reduce")
"""


def compared(folder: Path, source: str) -> tuple[Compared, Because | None]:
    own = walks(folder, source)
    code = SourceModel({})
    found = Alignment(code, own[0], own[1]).compared()
    chains = Chains(code, found)
    chain = chains.chain()
    return found, told({walk.rank: walk for walk in own}, found, chains, chain) if chain else None


def lines(because: Because | None, source: str) -> list[str]:
    assert because is not None
    return [source.splitlines()[link.at.line - 1].strip() for link in because.chain]


def test_a_branch_on_the_rank_goes_back_to_the_rank(tmp_path: Path) -> None:
    _, because = compared(tmp_path, RANK_BRANCH)
    assert lines(because, RANK_BRANCH) == ["if step == 2 and rank == 0:", "rank = int(os.environ['RANK'])"]
    assert (
        because is not None
        and because.origin == "rank"
        and {link.how for link in because.chain} == {"recorded"}
    )


def test_a_flag_goes_back_through_attributes_and_helpers_to_what_differed_first(tmp_path: Path) -> None:
    _, because = compared(tmp_path, OWN_DATA)
    found = lines(because, OWN_DATA)
    assert found[0] == "if stopper.stop:"
    assert "return [2.0, 2.0, 2.0] if rank else [0.5, 0.5, 0.5]" in found
    assert because is not None and because.origin == "rank"


def test_the_values_of_all_ranks_stand_beside_the_condition(tmp_path: Path) -> None:
    _, because = compared(tmp_path, OWN_DATA)
    assert because is not None
    (value,) = because.chain[0].values
    assert (value.name, value.by_rank) == ("stopper.stop", {"0": "False", "1": "True"})


def test_a_loop_that_ends_earlier_is_the_line(tmp_path: Path) -> None:
    _, because = compared(tmp_path, SHORTER)
    assert lines(because, SHORTER)[:2] == ["for batch in shard():", "return list(range(3 + rank))"]
    assert because is not None and because.origin == "rank"


def test_a_swallowed_exception_is_told_with_what_led_to_it(tmp_path: Path) -> None:
    _, because = compared(tmp_path, SWALLOWED)
    assert lines(because, SWALLOWED)[:3] == [
        "except OSError:",
        "raise OSError(n)",
        "if n == 1 and rank == 1:",
    ]


def test_an_iterator_that_ends_earlier_goes_back_to_what_it_ran_over(tmp_path: Path) -> None:
    _, because = compared(tmp_path, EXHAUSTED)
    assert lines(because, EXHAUSTED)[:3] == [
        "batch = next(feed)", "feed = iter(shard)", "shard = [1, 2] if rank else [1, 2, 3]",
    ]  # fmt: skip
    assert because is not None and because.origin == "rank"
    assert "the iterator had come to its end on rank 1" in because.chain[0].because


def test_a_rank_that_leaves_a_branch_of_its_own_is_told_by_the_condition_inside(tmp_path: Path) -> None:
    _, because = compared(tmp_path, ROLE)
    assert lines(because, ROLE)[:2] == ["if message is None:", "if rank == 0:"]


def test_what_a_function_was_given_does_not_say_why_one_rank_alone_got_into_it(tmp_path: Path) -> None:
    _, because = compared(tmp_path, DECORATED)
    assert lines(because, DECORATED) == ["publish(values)"]
    assert because is not None and because.origin == "unknown"


def test_calls_that_are_not_alike_go_back_to_the_values_that_were_given(tmp_path: Path) -> None:
    found, because = compared(tmp_path, OTHER_ROOT)
    assert found.decisive is None and found.unlike is not None
    assert lines(because, OTHER_ROOT)[:2] == [
        "best = scores.index(max(scores))", "scores = [1.0, 2.0] if rank else [2.0, 1.0]",
    ]  # fmt: skip


@pytest.mark.parametrize("source", [MAIN_PRINTS, LATE], ids=["the main rank prints", "one is only behind"])
def test_ranks_whose_calls_match_have_not_parted(tmp_path: Path, source: str) -> None:
    found, because = compared(tmp_path, source)
    assert (found.decisive, because) == (None, None)


CONSTRUCTED = f"""{HEAD}
class Files:
    def __init__(self, count, rank):
        start = rank * 2
        self.numbers = range(start, count)
    def __iter__(self):
        return iter(self.numbers)
files = Files(6, rank)
for number in files:
    call("all_reduce")
call("barrier")
"""
CHOSEN = f"""{HEAD}
turn = "critic" if rank else "generator"
if turn == "critic":
    call("broadcast")
call("all_reduce")
"""
JOINED = f"""{HEAD}
class Join:
    def __init__(self, models): pass
    def __enter__(self): pass
    def __exit__(self, *_): pass
with Join([1, 2]):
    for n in range(3 + rank):
        call("all_reduce")
call("barrier")
"""
RETURNED = f"""{HEAD}
def gradients():
    return [n for n in range(8) if n % (2 + rank)]
sizes = gradients()
call("all_reduce", len(sizes))
"""
# Nothing on record says why the two differ, but which value did first.
UNSEEN = f"""{HEAD}
class Model: pass
models = [Model()]
vars(models[0])["step"] = 2 + rank
def gradients():
    return [n for n in range(8) if n % models[0].step]
sizes = gradients()
flat = [*sizes]
call("all_reduce", len(flat))
"""


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (SHORTER, "return list(range(3 + rank))"),
        (EXHAUSTED, "shard = [1, 2] if rank else [1, 2, 3]"),
        (CONSTRUCTED, "start = rank * 2"),
        (CHOSEN, 'if turn == "critic":'),
        (JOINED, "with Join([1, 2]):"),
        (RETURNED, "return [n for n in range(8) if n % (2 + rank)]"),
        (UNSEEN, "return [n for n in range(8) if n % models[0].step]"),
        (SWALLOWED, "except OSError:"),
        (RANK_BRANCH, "if step == 2 and rank == 0:"),
    ],
    ids=["loop", "iterator", "constructor", "choice", "join", "return", "unseen", "exception", "rank"],
)
def test_the_cause_is_the_line_that_made_ranks_differ_and_not_one_that_passes_it_on(
    tmp_path: Path, source: str, line: str
) -> None:
    _, because = compared(tmp_path, source)
    assert because is not None
    assert source.splitlines()[because.line - 1].strip() == line
