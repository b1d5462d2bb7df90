"""What a patch may not do to agree, read from its text."""

from __future__ import annotations

import pytest

from nsadiag.repair.change import Change
from nsadiag.repair.conduct import conduct

SOURCE = """
def train(loader):
    for batch in loader:
        loss = step(batch)
        loss.backward()
        if loss < 1:
            break
    dist.barrier()
"""


def of(old: str, new: str) -> Change:
    return Change.of({"train.py": SOURCE}, {"train.py": SOURCE.replace(old, new)})


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("dist.barrier()", "time.sleep(5)\n    dist.barrier()", "sleeps"),
        (
            "    dist.barrier()",
            "    try:\n        dist.barrier()\n    except RuntimeError:\n        pass",
            "swallows",
        ),
        (
            "    dist.barrier()",
            "    with contextlib.suppress(Exception):\n        dist.barrier()",
            "swallows",
        ),
        (
            "        loss = step(batch)",
            "        if rank:\n            continue\n        loss = step(batch)",
            "leaves early",
        ),
        ("    dist.barrier()", "    if rank:\n        return\n    dist.barrier()", "leaves early"),
        ("    dist.barrier()", "    os._exit(0)\n    dist.barrier()", "ends the process"),
        ("    dist.barrier()", "    dist.destroy_process_group()\n    dist.barrier()", "ends the process"),
        ("for batch in loader:", "for batch in loader", "no Python"),
    ],
)
def test_a_patch_that_hides_the_failure_is_refused(old: str, new: str, what: str) -> None:
    shown = conduct(of(old, new))
    assert not shown.met and what in shown.because


AGREE = "\ndef agree(flag):\n    {call}\n    return flag\n"


@pytest.mark.parametrize(
    ("call", "met"),
    [
        ("dist.all_reduce(flag, op=dist.ReduceOp.MAX)", True),
        ("dist.broadcast(flag, 0)", False),
        ("dist.all_reduce(flag, op=dist.ReduceOp.MIN)", False),
        ("dist.all_reduce(flag)", False),
    ],
)
def test_a_rank_that_would_enter_a_branch_may_not_be_kept_out_of_it(call: str, met: bool) -> None:
    source = "def forward(batch):\n    if batch.any():\n        loss = vision(batch)\n"
    after = AGREE.format(call=call) + source.replace("batch.any()", "agree(batch.any())")
    assert conduct(Change.of({"train.py": source}, {"train.py": after})).met is met


@pytest.mark.parametrize(
    "choice", ["    size = 3 if {} else 4\n", "    if {}:\n        size = 3\n    else:\n        size = 4\n"]
)
def test_a_rank_may_not_be_given_the_other_of_two_sides(choice: str) -> None:
    source = f"def read(batch):\n{choice}"
    any_rank = AGREE.format(call="dist.all_reduce(flag, op=dist.ReduceOp.MAX)")
    after = any_rank + source.format("agree(batch.any())")
    assert not conduct(Change.of({"train.py": source.format("batch.any()")}, {"train.py": after})).met


def test_a_branch_that_leaves_may_be_decided_by_one_rank() -> None:
    after = AGREE.format(call="dist.broadcast(flag, 0)") + SOURCE.replace("loss < 1", "agree(loss < 1)")
    assert conduct(Change.of({"train.py": SOURCE}, {"train.py": after})).met


def test_a_new_function_may_return_and_an_error_may_be_raised_again() -> None:
    helper = "\ndef agree(flag):\n    try:\n        return ask(flag)\n    except OSError:\n        raise\n"
    change = Change.of(
        {"train.py": SOURCE}, {"train.py": f"{helper}{SOURCE.replace('loss < 1', 'agree(loss < 1)')}"}
    )
    assert conduct(change).met


@pytest.mark.parametrize(("op", "met"), [("MAX", False), ("MIN", True)])
def test_work_that_is_no_round_of_training_is_left_out_only_where_all_ranks_want_it(
    op: str, met: bool
) -> None:
    source = "def forward(experts, x):\n    for expert in experts:\n        if not expert.chosen(x):\n            continue\n        y = expert(x)\n"
    helper = AGREE.format(call=f"dist.all_reduce(flag, op=dist.ReduceOp.{op})")
    after = helper + source.replace("not expert.chosen(x)", "agree(not expert.chosen(x))")
    assert conduct(Change.of({"model.py": source}, {"model.py": after})).met is met


@pytest.mark.parametrize(("op", "met"), [("MAX", True), ("MIN", False)])
def test_a_flag_is_agreed_on_as_the_branch_that_asks_it(op: str, met: bool) -> None:
    source = "def train(batch):\n    last = batch.full()\n    if last:\n        step()\n"
    helper = AGREE.format(call=f"dist.all_reduce(flag, op=dist.ReduceOp.{op})")
    after = helper + source.replace("batch.full()", "agree(batch.full())")
    assert conduct(Change.of({"train.py": source}, {"train.py": after})).met is met


@pytest.mark.parametrize(("op", "met"), [("MAX", True), ("MIN", False)])
def test_a_loop_that_refines_ends_where_all_ranks_are_done(op: str, met: bool) -> None:
    source = "def solve(x):\n    while residual(x) > 1:\n        x = refined(x)\n"
    helper = AGREE.format(call=f"dist.all_reduce(flag, op=dist.ReduceOp.{op})")
    after = helper + source.replace("residual(x) > 1", "agree(residual(x) > 1)")
    assert conduct(Change.of({"solve.py": source}, {"solve.py": after})).met is met


DRAWN = "import random\n\ndef mixed(x, p):\n    if random.random() >= p:\n        return x\n    return gather(x)\n"
OF_RANK_0 = "\ndef of_rank_0(value):\n    dist.broadcast_object_list([value])\n    return value\n"


@pytest.mark.parametrize(
    ("helper", "test", "met"),
    [
        (OF_RANK_0, "of_rank_0(random.random()) >= p", True),
        (
            AGREE.format(call="dist.all_reduce(flag, op=dist.ReduceOp.MIN)"),
            "agree(random.random() >= p)",
            False,
        ),
        (
            AGREE.format(call="dist.all_reduce(flag, op=dist.ReduceOp.MAX)"),
            "agree(random.random() >= p)",
            False,
        ),
    ],
)
def test_what_is_drawn_by_lot_is_drawn_by_one_rank_and_not_by_all_together(
    helper: str, test: str, met: bool
) -> None:
    after = helper + DRAWN.replace("random.random() >= p", test)
    assert conduct(Change.of({"mix.py": DRAWN}, {"mix.py": after})).met is met


def test_a_name_that_all_ranks_take_from_one_may_not_choose_between_two_sides() -> None:
    source = "def train(batch):\n    kind = batch.kind()\n    if kind == 'text':\n        read()\n    else:\n        see()\n"
    after = OF_RANK_0 + source.replace("batch.kind()", "of_rank_0(batch.kind())")
    assert not conduct(Change.of({"train.py": source}, {"train.py": after})).met


def test_whether_a_rank_has_a_group_is_asked_as_before_when_all_create_it() -> None:
    before = "def connect(self):\n    self.pair = dist.new_group(self.mine)\n    if self.pair is not None:\n        use(self.pair)\n    else:\n        wait()\n"
    helper = "def created_by_all(members):\n    dist.all_gather_object(named, members)\n    return dist.new_group(members)\n"

    def met(old: str, new: str) -> bool:
        text = helper + before.replace(old, new)
        return conduct(Change.of({"train.py": before}, {"train.py": text})).met

    assert met("dist.new_group(", "created_by_all(")
    assert not met("self.pair is not None", "created_by_all(self.pair) is not None")
