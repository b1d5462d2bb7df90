"""The cause that the source tells where no explanation is known: black boxes, stacks and a source that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.parting import Job, step

from nsadiag.analysis.case import Case
from nsadiag.analysis.explain.inferred import inferred
from nsadiag.evidence.records import Because, Finding, Strength, Where
from nsadiag.evidence.ring.blackbox import Kind

DISPATCH = """
    def dense(x):
        dist.all_reduce(x)  # DENSE

    def sparse(x):
        dist.all_gather(parts, x)  # SPARSE

    def mix(x):
        kind = "sparse" if (x == 0).any() else "dense"
        return METHODS[kind](x)  # CALLS

    mix(batch)  # MAIN
"""
DEFINED = """
    hooks = []
    if os.environ["RANK"] == "0":
        @hooks.append
        def share():
            dist.all_reduce(x)  # DENSE
    for hook in hooks:
        hook()  # MAIN
    dist.barrier()  # SPARSE
"""
CONFIGURED = """
    for step in range(9):
        if step % settings.save_every == 0:
            dist.all_gather(parts, x)  # SPARSE
        dist.all_reduce(x)  # DENSE
"""
SKIPPED = """
    for number in range(9):
        try:
            row = json.loads(lines[number])
        except ValueError:
            continue
        dist.all_reduce(row)  # DENSE
    dist.barrier()  # SPARSE
"""
UNLIKE = """
    order = set(names)
    for name in order:
        dist.broadcast(parts[name], 0)  # DENSE SPARSE
"""
SIZES = """
    rank = dist.get_rank()
    rows = [row for row in table if row.label]
    dist.all_reduce(torch.stack(rows))  # DENSE SPARSE
"""
PADDED = """
    for batch in stream(dist.get_rank()):
        x = pad(batch)
        dist.all_reduce(other)  # DENSE SPARSE
"""


def told(path: Path, text: str, cls: str, *inner: str) -> tuple[str, Because] | None:
    """The code of the line that is named. Rank 0 is in the line of DENSE, called from `inner`, and rank 1 in that of SPARSE."""
    job = Job(path, text)
    for rank, line in enumerate(("# DENSE", "SPARSE")):
        outer = inner if line == "# DENSE" or "def sparse" in text else ()
        job.rank(rank, job.stack(line, *outer, call="all_reduce"), (Kind.COLLECTIVE, "all_reduce", line))
    where = Where(file=str(job.script), line=job.at("# DENSE"))
    cause = Finding(
        outcome="hung", cls=cls, strength=Strength.LIKELY, summary="", guilty_ranks=(0,), blocked_ranks=(1,), where=where,
    )  # fmt: skip
    because = inferred(Case(job.cell()), cause)
    return (job.script.read_text().splitlines()[because.line - 1].strip(), because) if because else None


@pytest.mark.parametrize(
    ("text", "cls", "inner", "line", "origin"),
    [
        (DISPATCH, "collective_order_mismatch", ("# CALLS", "# MAIN"), "return METHODS[kind](x)  # CALLS", "data"),
        (DEFINED, "collective_order_mismatch", ("# MAIN",), 'if os.environ["RANK"] == "0":', "rank"),
        (CONFIGURED, "collective_order_mismatch", (), "if step % settings.save_every == 0:", "unknown"),
        (SKIPPED, "collective_order_mismatch", (), "except ValueError:", "data"),
        (UNLIKE, "collective_order_mismatch", (), "for name in order:", "environment"),
        (SIZES, "collective_args_mismatch", (), "rows = [row for row in table if row.label]", "data"),
    ],
)  # fmt: skip
def test_the_line_that_made_ranks_part(
    tmp_path: Path, text: str, cls: str, inner: tuple[str, ...], line: str, origin: str
) -> None:
    found = told(tmp_path, text, cls, *inner)
    assert found is not None
    assert (found[0], found[1].how, found[1].origin) == (line, "inferred", origin)


def test_a_loop_around_says_nothing_of_what_a_call_was_given(tmp_path: Path) -> None:
    assert told(tmp_path, PADDED, "collective_args_mismatch") is None


def test_a_rank_that_passed_over_a_batch_had_as_many(tmp_path: Path) -> None:
    job = Job(
        tmp_path,
        """
        for batch in loader:  # ASKS
            if not usable(batch):
                continue
            model(batch).backward()  # TRAINS
        dist.barrier()  # BEHIND
        """,
    )
    job.answers = {"# ASKS": False}
    asked, trained = (Kind.DATA, "Rows", "# ASKS"), step("# TRAINS")
    job.rank(0, job.stack("# TRAINS", call="all_reduce"), *[asked, *trained] * 3, asked, *trained[:2])
    job.rank(1, job.stack("# BEHIND", call="barrier"), *[asked, *trained] * 2, asked, asked, *trained)
    found = job.parted()
    assert found is not None and found.condition is not None
    assert (found.cls, found.guilty, found.condition.test) == (
        "data_divergent_control_flow", (1,), "not usable(batch)",
    )  # fmt: skip
