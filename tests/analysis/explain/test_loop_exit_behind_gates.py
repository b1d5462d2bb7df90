"""Loops that a rank never came to: calls of a helper that others share do not prove that it was there."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.parting import Did, Frames, Job, step

from nsadiag.evidence.ring.blackbox import Kind

REPORTS = textwrap.dedent(
    """
    {decorator}

    def whole(tensor):
        return gather(tensor)  # shared

    def drift(model):
        return whole(model.total)

    @{name}
    def report(named):
        for name, p in named:
            print(name, whole(p))

    def main():
        for batch in loader:
            model(batch).backward()
            drift(model)
            report(model.named_parameters())

    main()  # begins
    """
)
OWN = textwrap.dedent(
    """
    def first_only(function):
        def inner(*args):
            {condition}
            {ending}

        return inner
    """
)
TRAIN, SHARED, PRINTS, CALL, MAIN = ".backward()", "# shared", "print(name", "report(model", "# begins"


def reports(path: Path, decorator: str, name: str, wrapper: tuple[str, ...]) -> Job:
    """Rank 0 gathers whole tensors in a report that rank 1 is not let into; both did so in another function before."""
    job = Job(path, REPORTS.format(decorator=decorator, name=name))
    both: Did = (Kind.COLLECTIVE, "all_gather", SHARED)
    begun = [*step(TRAIN), both, *step(TRAIN), both]
    inside: Frames = job.stack(SHARED, PRINTS, *wrapper, CALL, MAIN, call="all_gather")
    job.rank(0, inside, *begun, both)
    job.rank(1, job.stack(TRAIN, MAIN, call="all_reduce"), *begun, *step(TRAIN)[:2])
    return job


@pytest.mark.parametrize(
    ("condition", "ending", "cls"),
    [
        ("if dist.get_rank() == 0:", "    return function(*args)", "rank_conditional_collective"),
        ("if dist.get_rank() != 0: return", "return function(*args)", "rank_conditional_collective"),
        ("if loss.item() < best:", "    return function(*args)", "data_divergent_control_flow"),
    ],
)
def test_who_a_decorator_does_not_let_in_has_not_left_the_loop_in_the_function(
    tmp_path: Path, condition: str, ending: str, cls: str
) -> None:
    wrapper = OWN.format(condition=condition, ending=ending)
    job = reports(tmp_path, wrapper, "first_only", ("return function(*args)",))
    found = job.parted()
    assert found and (found.cls, found.guilty) == (cls, (0,))
    assert found.condition and found.condition.line == job.at(condition)


@pytest.mark.parametrize(
    "name",
    ["rank_zero_only", "accelerator.on_main_process", "master_only()", "accelerator.on_main_process()"],
)
def test_a_librarys_decorator_is_known_by_its_name(tmp_path: Path, name: str) -> None:
    job = reports(tmp_path, "from library import rank_zero_only, master_only", name, ())
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("rank_conditional_collective", (0,))
    assert found.condition and found.condition.line == job.at(f"@{name}")
    assert f"`@{name.rpartition('.')[2].removesuffix('()')}`" in found.because


WRAPPED = """
    {before}

    def whole(tensor):
        return gather(tensor)  # shared

    def drift(model):
        return whole(model.total)

    def report(named):
        for name, p in named:
            print(name, whole(p))

    {gated} = {gate}(report)  # gate

    def main():
        for batch in loader:
            model(batch).backward()
            drift(model)
            {gated}(model.named_parameters())

    main()  # begins
    """


def wrapped(path: Path, before: str, gate: str, gated: str = "gated") -> Job:
    """The same report, handed to a gate in place of being decorated."""
    job = Job(path, WRAPPED.format(before=before, gate=gate, gated=gated))
    both: Did = (Kind.COLLECTIVE, "all_gather", SHARED)
    begun = [*step(TRAIN), both, *step(TRAIN), both]
    call = f"{gated}(model"
    job.rank(0, job.stack(SHARED, PRINTS, call, MAIN, call="all_gather"), *begun, both)
    job.rank(1, job.stack(TRAIN, MAIN, call="all_reduce"), *begun, *step(TRAIN)[:2])
    return job


@pytest.mark.parametrize(
    ("before", "gate", "gated"),
    [
        ("from library import rank_zero_only", "rank_zero_only", "gated"),
        ("from library import rank_zero_only", "rank_zero_only", "report"),
        ("accelerator = Accelerator()", "accelerator.on_main_process", "gated"),
    ],
)
def test_a_function_handed_to_a_librarys_gate_is_behind_it(
    tmp_path: Path, before: str, gate: str, gated: str
) -> None:
    job = wrapped(tmp_path, before, gate, gated)
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("rank_conditional_collective", (0,))
    assert found.condition and found.condition.line == job.at("# gate")


@pytest.mark.parametrize(
    "gate", ["timed", "torch.compile", "accelerator.on_process", "partial(torch.compile)"]
)
def test_what_is_no_gate_lets_all_ranks_in(tmp_path: Path, gate: str) -> None:
    found = wrapped(tmp_path, "from library import timed", gate).parted()
    assert found is None or found.cls != "rank_conditional_collective"


@pytest.mark.parametrize("name", ["torch.no_grad()", "rank_zero_first", "main_process_first", "timed"])
def test_other_decorators_let_all_ranks_in(tmp_path: Path, name: str) -> None:
    found = reports(tmp_path, "from library import rank_zero_first", name, ()).parted()
    assert found is None or found.cls != "rank_conditional_collective"


def test_who_is_not_let_in_for_once_has_not_left_the_loop_either(tmp_path: Path) -> None:
    condition = "if loss.item() < best:"
    wrapper = OWN.format(condition=condition, ending="    return function(*args)")
    job = Job(tmp_path, REPORTS.format(decorator=wrapper, name="first_only"))
    both: Did = (Kind.COLLECTIVE, "all_gather", SHARED)
    begun = [*step(TRAIN), both, both, both] * 2 + [*step(TRAIN), both]
    job.rank(0, job.stack(SHARED, PRINTS, "return function(", CALL, MAIN, call="all_gather"), *begun, both)
    job.rank(1, job.stack(TRAIN, MAIN, call="all_reduce"), *begun, *step(TRAIN)[:2])
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("data_divergent_control_flow", (1,))
    assert found.where and found.where.line == job.at(condition)


EVALUATES = """
    def mean(values):
        return reduce(values)  # shared

    def evaluate(held_out):
        for batch in held_out:
            score = model(batch)  # evaluates
            mean(score)  # in the loop

    for batch in loader:
        model(batch).backward()
        mean(losses)
        evaluate(parts)
    """


@pytest.mark.parametrize(("rounds", "cls"), [(2, "uneven_inputs"), (0, None)])
def test_rounds_are_counted_by_what_is_done_in_the_loop_alone(
    tmp_path: Path, rounds: int, cls: str | None
) -> None:
    job = Job(tmp_path, EVALUATES)
    shared: Did = (Kind.COLLECTIVE, "all_reduce", SHARED)
    begun = [*step(TRAIN), shared, *step(TRAIN), shared]
    around = [(Kind.FORWARD, "Net", "# evaluates"), shared]
    job.rank(0, job.stack(SHARED, "# in the loop", "evaluate(parts)", call="all_reduce"), *begun, *around * 3)
    job.rank(1, job.stack(TRAIN, call="all_reduce"), *begun, *around * rounds, *step(TRAIN)[:2])
    found = job.parted()
    assert (found.cls if found and "end of the loop" in found.because else None) == cls
