"""From an expression back to an origin by the source alone."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from nsadiag.source.control import Program
from nsadiag.source.model import SourceFile
from nsadiag.source.ways.back import Ways

SHARDS = """
    class Files:
        def __init__(self, count, rank, world):
            base, rest = divmod(count, world)
            self.numbers = range(rank * base, (rank + 1) * base + (rank < rest))

        def __iter__(self):
            yield from self.numbers

    rank = dist.get_rank()
    loader = DataLoader(Files(10, rank, 3))
    for x in loader:  # HERE
        train(x)
"""
FILTERED = """
    def examples(seed):
        g = torch.Generator().manual_seed(seed)
        for _ in range(20):
            yield torch.randn(4, generator=g)

    def clean(stream):
        for each in stream:
            if each.mean() > 0:
                yield each

    for x in clean(examples(dist.get_rank())):  # HERE
        train(x)
"""
FLAG = """
    class Stopper:
        def __init__(self):
            self.bad, self.stop = 0, False

        def see(self, loss):
            if loss > 0.5:
                self.bad += 1
            if self.bad > 3:
                self.stop = True

    stopper = Stopper()
    while not stopper.stop:  # HERE
        stopper.see(train().item())
"""
PROPERTY = """
    class Session:
        @property
        def resuming(self):
            return STATE.exists()

    session = Session()
    if session.resuming:  # HERE
        restore()
"""
BUDGET = """
    class Budget:
        def __init__(self, seconds):
            self.ends = time.monotonic() + seconds

        def __bool__(self):
            return time.monotonic() < self.ends

    budget = Budget(3)
    while budget:  # HERE
        train()
"""
SET = """
    names = {line.partition(":")[0] for line in LINES}
    for name in names:  # HERE
        group(name)
"""
NAMESAKE = """
    for name in sorted(parts):
        make(name)
    names = set(parts)
    for name in names:
        for copy in copies(name):  # HERE
            send(copy)

    def copies(of):
        return [of, of]
"""


def program(text: str) -> tuple[Program, SourceFile, int]:
    text = dedent(text)
    file = SourceFile("train.py", ast.parse(text), text)
    line = next(n for n, each in enumerate(text.splitlines(), 1) if "# HERE" in each)
    return Program({"train.py": file}), file, line


def way_back(text: str) -> tuple[str, list[str]]:
    """The origin, and the code of each line on the way to it."""
    made, file, line = program(text)
    node = file.statement_at(line)
    asked = getattr(node, "test", None) or getattr(node, "iter", None)
    assert isinstance(asked, ast.expr)
    found = Ways(made).of(asked, made.scope_of("train.py", line))
    lines = dedent(text).splitlines()
    return found.origin, [lines[step.node.lineno - 1].strip() for step in found.steps]


@pytest.mark.parametrize(
    ("text", "origin", "through"),
    [
        (SHARDS, "rank", "self.numbers = range(rank * base, (rank + 1) * base + (rank < rest))"),
        (FILTERED, "rank", "if each.mean() > 0:"),
        (FLAG, "data", "if self.bad > 3:"),
        (PROPERTY, "file system", "return STATE.exists()"),
        (BUDGET, "time", "return time.monotonic() < self.ends"),
        (SET, "environment", 'names = {line.partition(":")[0] for line in LINES}'),
        (NAMESAKE, "environment", "for name in names:"),
    ],
)
def test_the_way_leads_through_what_made_the_value(text: str, origin: str, through: str) -> None:
    found, steps = way_back(text)
    assert found == origin
    assert through in steps


@pytest.mark.parametrize(
    "text",
    [
        "for name in sorted({*names}):  # HERE\n    group(name)\n",
        "g = torch.Generator().manual_seed(3)\nfor n in torch.randperm(9, generator=g):  # HERE\n    train(n)\n",
        "def load():\n    return [1, 2]\n\nfor n in load():  # HERE\n    train(n)\n",
        "for n in again(3):  # HERE\n    train(n)\n\ndef again(n):\n    return again(n)\n",
        # A device of its own says where a tensor is, and not what is in it.
        "device = torch.device('cuda', dist.get_rank())\nfor n in torch.arange(9, device=device):  # HERE\n    train(n)\n",
        "rank = dist.get_rank()\nfor n in torch.arange(9).to(f'cuda:{rank}'):  # HERE\n    train(n)\n",
        "rank = int(os.environ['LOCAL_RANK'])\nfor n in torch.arange(9).cuda(rank):  # HERE\n    train(n)\n",
    ],
)
def test_what_is_alike_on_all_ranks_has_no_origin(text: str) -> None:
    assert way_back(text) == ("unknown", [])


def test_an_objects_own_attribute_is_not_that_of_another_class() -> None:
    text = """
        class Shard:
            def __init__(self):
                self.size = dist.get_rank() + 3

        class Model:
            def __init__(self):
                self.size = 4

            def run(self):
                for n in range(self.size):  # HERE
                    layer(n)
    """
    assert way_back(text) == ("unknown", [])


def test_a_function_may_be_there_on_one_rank_only() -> None:
    text = """
        hooks = []
        if os.environ["RANK"] == "0":
            @hooks.append
            def share():
                dist.all_reduce(x)  # HERE
    """
    made, _, line = program(text)
    found = made.defined_under(made.scope_of("train.py", line).place(line))
    assert found is not None
    assert (found.provenance, found.line) == ("rank", 3)
