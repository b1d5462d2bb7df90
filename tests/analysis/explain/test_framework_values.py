"""Loops over callbacks of which one rank has more: they depend on the rank where the others never came to what it does there."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import Did, Job, step

from nsadiag.analysis.explain.candidate import Candidate
from nsadiag.evidence.ring.blackbox import Kind

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
# How it comes that rank 0 has one callback more.
WAYS = {
    "extended": "callbacks = [Mean()]\nif rank == 0:\n    callbacks += [Log(), Sample()]\nTrainer(callbacks).fit()",
    "appended": "callbacks = [Mean()]\nif dist.get_rank() == 0:\n    callbacks.append(Sample())\nTrainer(callbacks).fit()",
    "two lists": "if is_main:\n    callbacks = [Mean(), Sample()]\nelse:\n    callbacks = [Mean()]\nTrainer(callbacks).fit()",
    "by a name": "sample = Sample()\ncallbacks = [Mean()]\nif rank == 0:\n    callbacks.append(sample)\nTrainer(callbacks).fit()",
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


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_loop_over_callbacks_of_which_one_rank_has_more_depends_on_the_rank(
    tmp_path: Path, way: str
) -> None:
    job = job_of(tmp_path, way)
    found = parted_in_sample(job, ".fit()")
    assert found and (found.cls, found.guilty) == ("rank_conditional_collective", (0,))
    assert found.condition and found.condition.line == job.at("for callback in self.callbacks")
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


def test_a_callback_of_a_kind_that_all_have_does_not_depend_on_the_rank(tmp_path: Path) -> None:
    job = job_of(tmp_path, TWICE)
    mean: Did = (Kind.COLLECTIVE, "all_reduce", "dist.all_reduce(total)")
    stack = job.stack("dist.all_reduce(total)", RUN, EMIT, ".fit()", call="all_reduce")
    job.rank(0, stack, *step(TRAIN), mean)
    job.rank(1, job.stack(TRAIN, ".fit()", call="all_gather"), *step(TRAIN), mean, *step(TRAIN)[:2])
    found = job.parted()
    assert found is None or found.cls != "rank_conditional_collective", found


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
