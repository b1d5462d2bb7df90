"""Loops over callbacks and hooks of which one rank has more: what puts them there, and whether the rank stands in just that."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from support.parting import Did, Job, step
from support.sources import source_file

from nsadiag.analysis.explain.candidate import Candidate
from nsadiag.analysis.facts.locations import place
from nsadiag.evidence.ring.blackbox import Kind
from nsadiag.source.control import Program
from nsadiag.source.iterables import insertions, runs_its_items

CALLBACKS = """
class Callback:
    def on_step(self, model): ...

class Mean(Callback):
    def on_step(self, model):
        dist.all_reduce(total)

class Log(Callback):
    def on_step(self, model):
        print(model)

class Sample(Callback):
    def on_step(self, model):
        if time_to:
            model(prompt)  # samples

class Net:
    def forward(self, x):
        return self.inner(x)

class Trainer:
    def __init__(self, callbacks):
        self.callbacks = callbacks

    def add(self, callback):
        self.callbacks.append(callback)

    def emit(self, name):
        for callback in self.callbacks:
            getattr(callback, name)(model)

    def fit(self):
        for batch in batches:
            model(batch).backward()
            self.emit("on_step")
"""
# How it comes that rank 0 has one callback more; the line of the condition, and of what it puts there.
WAYS = {
    "extended": ("callbacks = [Mean()]\nif rank == 0:\n    callbacks += [Log(), Sample()]\nTrainer(callbacks).fit()", "if rank == 0:", "callbacks +="),
    "appended": ("callbacks = [Mean()]\nif dist.get_rank() == 0:\n    callbacks.append(Sample())\nTrainer(callbacks).fit()", "if dist.get_rank()", "    callbacks.append"),
    "a choice": ("Trainer([Mean()] + ([Sample()] if rank == 0 else [])).fit()", "Trainer([", "Trainer(["),
    "a choice that is unpacked": ("Trainer([Mean(), *([Sample()] if rank == 0 else ())]).fit()", "Trainer([", "Trainer(["),
    "two lists": ("if is_main:\n    callbacks = [Mean(), Sample()]\nelse:\n    callbacks = [Mean()]\nTrainer(callbacks).fit()", "if is_main:", "callbacks = [Mean(), S"),
    "told to the trainer": ("trainer = Trainer([Mean()])\nif rank == 0:\n    trainer.add(Sample())\ntrainer.fit()", "if rank == 0:", "trainer.add("),
    "of a function": ("def made():\n    found = [Mean()]\n    if rank != 0:\n        return found\n    found.append(Sample())\n    return found\nTrainer(made()).fit()", "if rank != 0:", "found.append"),
    "of a generator": ("def made():\n    yield Mean()\n    if rank == 0:\n        yield Sample()\nTrainer(list(made())).fit()", "if rank == 0:", "yield Sample"),
    "in a function that is called so": ("def watch(trainer):\n    trainer.callbacks.append(Sample())\ntrainer = Trainer([Mean()])\nif rank == 0:\n    watch(trainer)\ntrainer.fit()", "if rank == 0:", "trainer.callbacks.append"),
    "by a name": ("sample = Sample()\ncallbacks = [Mean()]\nif rank == 0:\n    callbacks.append(sample)\nTrainer(callbacks).fit()", "if rank == 0:", "    callbacks.append"),
}  # fmt: skip
TRAIN, EMIT, RUN = "model(batch)", 'self.emit("', "getattr(callback"


def job_of(path: Path, way: str) -> Job:
    return Job(path, CALLBACKS + way)


def parted_in_sample(job: Job, main: str, earlier: int = 0) -> Candidate | None:
    """Rank 0 stands in the model that a callback runs, rank 1 in the next step; `earlier`: so often rank 1 ran that as well."""
    mean: Did = (Kind.COLLECTIVE, "all_reduce", "dist.all_reduce(total)")
    inner: Did = (Kind.COLLECTIVE, "all_gather", "self.inner(x)")
    both = [(Kind.FORWARD, "Net", TRAIN), inner, (Kind.BACKWARD, "", TRAIN), (Kind.STEP, "", ""), mean]
    sample = [(Kind.FORWARD, "Net", "# samples"), inner]
    begun = [*both, *sample * earlier, *both]
    inside = job.stack("self.inner(x)", "# samples", RUN, EMIT, main, call="all_gather")
    job.rank(0, inside, *begun, *sample)
    job.rank(1, job.stack(TRAIN, main, call="all_gather"), *begun, *both[:3])
    return job.parted()


@pytest.mark.parametrize(("way", "condition", "puts"), WAYS.values(), ids=WAYS)
def test_the_condition_behind_which_one_rank_has_a_callback_more_is_named(
    tmp_path: Path, way: str, condition: str, puts: str
) -> None:
    job = job_of(tmp_path, way)
    found = parted_in_sample(job, ".fit()")
    assert found and (found.cls, found.guilty) == ("rank_conditional_collective", (0,))
    assert found.condition and found.condition.line == job.at(condition)
    assert f"train.py:{job.at(puts)}" in found.because
    assert found.where and found.where.line == job.at("# samples")  # not the line of the model


OTHERS = {
    "one that only prints": "callbacks = [Mean(), Sample()]\nif rank == 0:\n    callbacks.append(Log())\nTrainer(callbacks).fit()",
    "none": "Trainer([Mean(), Sample()]).fit()",
}


@pytest.mark.parametrize("way", OTHERS.values(), ids=OTHERS)
def test_a_callback_that_all_ranks_have_is_none_of_those_that_one_has_more(tmp_path: Path, way: str) -> None:
    found = parted_in_sample(job_of(tmp_path, way), ".fit()", earlier=1)
    assert found is None or found.cls != "rank_conditional_collective", found
    assert found is None or "end of the loop" not in found.because


TWICE = "callbacks = [Mean()]\nif rank == 0:\n    callbacks.append(Mean())\nTrainer(callbacks).fit()"


@pytest.mark.parametrize("more", [True, False])
def test_of_one_kind_that_all_have_one_rank_has_more_only_if_it_went_round_more(
    tmp_path: Path, more: bool
) -> None:
    job = job_of(tmp_path, TWICE)
    mean: Did = (Kind.COLLECTIVE, "all_reduce", "dist.all_reduce(total)")
    stack = job.stack("dist.all_reduce(total)", RUN, EMIT, ".fit()", call="all_reduce")
    job.rank(0, stack, *step(TRAIN), mean, *([mean] if more else []))
    job.rank(1, job.stack(TRAIN, ".fit()", call="all_gather"), *step(TRAIN), *[mean] * more, *step(TRAIN)[:2])
    found = job.parted()
    by_rank = found is not None and found.cls == "rank_conditional_collective" and found.guilty == (0,)
    assert by_rank is more, found


SUMS = """
def flush(totals):
    for name, total in totals.items():
        dist.all_reduce(total)

totals = {{"loss": loss}}
if {condition}:
    totals["rate"] = rate
for batch in batches:
    model(batch).backward()
    flush(totals)
"""


def test_one_number_more_to_sum_on_one_rank_is_told_by_the_line_that_adds_it(tmp_path: Path) -> None:
    job = Job(tmp_path, SUMS.format(condition="rank == 0"))
    total: Did = (Kind.COLLECTIVE, "all_reduce", "dist.all_reduce(total)")
    stack = job.stack("dist.all_reduce(total)", "    flush(totals)", call="all_reduce")
    job.rank(0, stack, *step(TRAIN), total, total)
    job.rank(1, job.stack(TRAIN, call="all_gather"), *step(TRAIN), total, *step(TRAIN)[:2])
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("rank_conditional_collective", (0,))
    assert (
        found.condition and found.condition.line == job.at("if rank == 0") and "train.py:8 " in found.because
    )


def test_batches_that_one_rank_has_more_are_inputs(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def validate(parts):
            for part in parts:
                model(part)  # validates

        parts = [first, second]
        if rank == 0:
            parts.append(rest)
        for batch in batches:
            model(batch).backward()
            validate(parts)
        """,
    )
    forward: Did = (Kind.FORWARD, "Net", "# validates")
    stack = job.stack("# validates", "    validate(parts)", call="all_gather")
    job.rank(0, stack, *step(TRAIN), *[forward] * 3)
    job.rank(1, job.stack(TRAIN, call="all_reduce"), *step(TRAIN), *[forward] * 2, *step(TRAIN)[:2])
    found = job.parted()
    assert found and found.cls == "uneven_inputs"


@pytest.mark.parametrize(
    ("call", "runs"),
    [
        ("each(model)", True),
        ("each.behind(model)", True),
        ("getattr(each, name)(model)", True),
        ("getattr(model, each)()", True),
        ("TASKS[each](model)", True),
        ("hook = each.get('step')\n    hook(model)", False),
        ("hook = each.behind\n    hook(model)", True),
        ("model(each.to(device))", False),
        ("x = each['text']\n    model(x)", False),
        ("evaluate(each)", False),
        ("evaluate(each).sum()", False),
        ("losses.append(evaluate(each.to(device)))", False),
        ("evaluate(model, batches[each])", False),
    ],
)
def test_whether_what_a_loop_hands_out_is_run_or_given_to_what_is(call: str, runs: bool) -> None:
    source = f"for each in things:\n    {call}\ndef behind(x):\n    dist.barrier()\n"
    program, last = Program({"t.py": source_file("t.py", source)}), 3 if "\n" in call else 2
    (loop,) = program.around("t.py", 2)
    inside = place("t.py", last, None), place("t.py", last + 2, "behind")
    assert runs_its_items(program, loop, inside) is runs
    assert not runs_its_items(program, loop, inside[:1])  # it waits in the loop itself


@pytest.mark.parametrize(
    "over",
    ["range(9)", "model.parameters()", "self.blocks", "loader", "groups[rank]", "zip(a, b)"],
)
def test_what_nothing_is_put_into_on_some_ranks_has_no_such_condition(over: str) -> None:
    source = f"if rank == 0:\n    log = Log()\nfor each in {over}:\n    each()\n"
    program = Program({"t.py": source_file("t.py", textwrap.dedent(source))})
    (loop,) = program.around("t.py", 4)
    assert not [f for f in insertions(program, loop) if f.guard]
