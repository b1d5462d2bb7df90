"""Where two ranks parted, told from black boxes, stacks and a source that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import Did, Job, step

from nsadiag.evidence.ring.blackbox import Kind


def gathered(unit: str, line: str) -> list[Did]:
    return [(Kind.UNIT, f"unshard {unit}", ""), (Kind.COLLECTIVE, "all_gather", line)]


def test_who_turned_back_before_a_collective_is_guilty_and_not_the_loop_over_callbacks(
    tmp_path: Path,
) -> None:
    job = Job(
        tmp_path,
        """
        def evaluate(batches):
            losses = [float(b) for b in batches]
            if not losses:
                return {}
            dist.all_gather(parts, losses)

        def fit(callbacks, loader):
            for step in range(60):
                model(next(source)).backward()
                for callback in callbacks:
                    if step % 5 == 0:
                        evaluate(loader)

        fit([Evaluation(files)], deal(files))
        """,
    )
    main, train, gather = "fit([", ".backward()", "dist.all_gather"
    trained = [*step(train), *step(train)]
    inside = job.stack(gather, "evaluate(loader)", main, call="all_gather")
    job.rank(0, inside, *trained, (Kind.COLLECTIVE, "all_gather", gather))
    job.rank(1, job.stack(train, main, call="all_reduce"), *trained, *step(train)[:2])
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("data_divergent_control_flow", (1,))
    assert found.where and found.where.line == job.at("if not losses")


def test_a_loop_before_the_training_was_left_by_who_has_come_to_the_training(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        def collect(env):
            for _ in range(60):
                dist.all_gather(seen, observation)
                if env.step(action).terminated:
                    break

        def improve(episode):
            net(episode).backward()

        for update in range(40):
            collect(env)
            improve(episode)
        """,
    )
    gather, train = "dist.all_gather", "net(episode)"
    observed = (Kind.COLLECTIVE, "all_gather", gather)
    job.rank(0, job.stack(gather, "    collect(env)", call="all_gather"), *[observed] * 5)
    trains = job.stack(train, "    improve(episode)", call="all_reduce")
    job.rank(1, trains, *[observed] * 4, *step(train)[:2])
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("data_divergent_control_flow", (1,))
    assert found.where and found.where.line == job.at(".terminated")


SERVER = """
    def main():
        if dist.get_rank() == 0:
            serve()
        else:
            follow()

    def serve():
        while True:
            request = inbox.recv()
            dist.broadcast(request, 0)

    def follow():
        while True:
            dist.broadcast(job, 0)
"""


@pytest.mark.parametrize(("brought", "waited"), [(4, 5), (0, 1)])
def test_each_side_of_a_branch_on_rank_may_have_a_call_of_its_own(
    tmp_path: Path, brought: int, waited: int
) -> None:
    """What was brought time and again from the other side is late; what never was is missing."""
    job = Job(tmp_path, SERVER)
    theirs = [(Kind.COLLECTIVE, "broadcast", "broadcast(job")] * waited
    own = [(Kind.COLLECTIVE, "broadcast", "broadcast(request")] * brought
    job.rank(0, job.stack("inbox.recv()", "    serve()"), *own)
    job.rank(1, job.stack("broadcast(job", "    follow()", call="broadcast"), *theirs)
    found = job.parted()
    assert (found is None) if brought else (found and found.cls == "rank_conditional_collective")


DISPATCH = """
    def mean(values):
        dist.all_reduce(values)

    def tally(values):
        {branch}
        dist.all_gather_object(rows, values)

    def flush(series):
        for name, values in series.items():
            ROUTES[name](values)

    def fit(series):
        for batch in loader:
            model(batch).backward()
            flush(series)

    fit(collect())
"""


@pytest.mark.parametrize(
    ("branch", "known", "cls"),
    [
        ("pass", True, "collective_order_mismatch"),
        # Rank 0 may have gone past that call, and on to what comes next.
        ("if not values: return", True, "data_divergent_control_flow"),
        # A call that others never made may be one too many.
        ("pass", False, "data_divergent_control_flow"),
    ],
)
def test_a_line_in_a_loop_that_leads_to_calls_which_all_made_before_leads_to_them_in_another_order(
    tmp_path: Path, branch: str, known: bool, cls: str
) -> None:
    job = Job(tmp_path, DISPATCH.format(branch=branch))
    train, one, two = ".backward()", "all_reduce(values)", "all_gather_object("
    outer = ("ROUTES[", "    flush(series)", "fit(collect())")
    mean, tally = (Kind.COLLECTIVE, "all_reduce", one), (Kind.COLLECTIVE, "all_gather_object", two)
    before = [*step(train), mean, *([tally] if known else [])] * 3
    job.rank(0, job.stack(one, *outer, call="all_reduce"), *before, *step(train), mean)
    job.rank(1, job.stack(two, *outer, call="all_gather_object"), *before, *step(train), tally)
    found = job.parted()
    assert found and (found.cls, found.guilty) == (cls, (1,))
    if cls == "collective_order_mismatch":
        assert found.where and found.where.line == job.at("for name, values")


@pytest.mark.parametrize(
    ("behind", "named"),
    [
        ("report(losses)", "for batch in loader:"),  # where it waits in a helper says less than what it left
        ("dist.all_reduce(total)  # here", "# here"),
    ],
)
def test_whose_data_ended_is_shown_in_the_function_of_the_loop(
    tmp_path: Path, behind: str, named: str
) -> None:
    job = Job(
        tmp_path,
        f"""
        def report(parts):
            dist.all_gather(parts, mine)

        for epoch in range(3):
            for batch in loader:
                model(batch).backward()
            {behind}
        """,
    )
    train, over, gather = "model(batch)", "for batch in loader:", "dist.all_gather"
    batch = [(Kind.DATA, "Clips", over), *step(train)]
    job.rank(0, job.stack(train, call="all_reduce"), *batch, *batch, *batch[:3])
    waits = [gather, behind] if behind == "report(losses)" else [named]
    ended = [(Kind.DATA, "Clips", over), (Kind.COLLECTIVE, "all_gather", waits[0])]
    job.rank(1, job.stack(*waits, call="all_gather"), *batch, *batch, *ended)
    found = job.parted()
    assert found and (found.cls, found.guilty) == ("uneven_inputs", (1,))
    assert found.where and found.where.line == job.at(named)


@pytest.mark.parametrize("ran_out", [False, True])
def test_who_was_given_a_batch_and_left_with_it_has_not_run_out_of_data(
    tmp_path: Path, ran_out: bool
) -> None:
    job = Job(
        tmp_path,
        """
        for epoch in range(3):
            for batch in loader:
                if not batch.isfinite().all():
                    break
                model(batch).backward()
            dist.barrier()
        """,
    )
    train, asks = "model(batch)", "for batch in loader:"
    batch: list[Did] = [(Kind.DATA, "Clips", asks), *step(train)]
    job.rank(0, job.stack(train, call="all_reduce"), *batch * 2, *batch[:3])
    job.answers[asks] = ran_out
    left: list[Did] = [(Kind.DATA, "Clips", asks), (Kind.COLLECTIVE, "barrier", "dist.barrier")]
    job.rank(1, job.stack("dist.barrier", call="barrier"), *batch * 2, *left)
    found = job.parted()
    cls = "uneven_inputs" if ran_out else "data_divergent_control_flow"
    assert found and (found.cls, found.guilty) == (cls, (1,))
