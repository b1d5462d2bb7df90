"""What counts as an iteration of a training loop, whatever drives it."""

from __future__ import annotations

import pytest

from nsadiag.evidence.iterations import Iterations
from nsadiag.evidence.ring.blackbox import Kind, Phase

F, B, C, D = Kind.FORWARD, Kind.BACKWARD, Kind.COLLECTIVE, Kind.DATA


def counted(events: list[Kind], *, is_wrapped: bool = False) -> tuple[int, Kind | None]:
    found = Iterations(is_wrapped=is_wrapped)
    for kind in events:
        found.take(kind, Phase.BEGIN)
        found.take(kind, Phase.END)
    return found.count, found.anchor


@pytest.mark.parametrize(
    ("loop", "iterations", "anchor"),
    [
        ([F, B] * 7, 7, B),  # an optimizer of one's own
        ([F, B, C, C, C, C] * 7, 7, B),  # layers that are reduced one by one
        ([F, C, B, C] * 7, 7, B),  # two meetings in each
        ([F, B, F, B, F, B, C] * 7, 7, C),  # local steps, or a line search, between two meetings
        (([F] * 30 + [F, B, C] * 4) * 3, 12, B),  # rollouts, and four updates of each
        ([D, F] * 7, 7, D),  # evaluation
        ([D] + [F] * 40 + [D] + [F] * 40, 2, D),  # tokens that are generated
        ([F] * 7, 7, F),  # inference, without a loader
        ([C] * 7, 7, C),  # nothing but collectives
        ([F, B], 0, None),  # nothing has recurred
        ([], 0, None),
    ],
)
def test_an_iteration_is_what_recurs_in_the_loop(
    loop: list[Kind], iterations: int, anchor: Kind | None
) -> None:
    assert counted(loop) == (iterations, anchor)


def test_a_rank_that_only_calls_its_model_makes_no_iteration_between_two_meetings() -> None:
    assert counted([F, B, C] * 5 + [F] * 10_000) == counted([F, B, C] * 5) == (5, B)


def test_where_backward_meets_the_peers_a_rare_metric_is_no_iteration() -> None:
    epoch = [F, B] * 50 + [C]
    assert counted(epoch * 3) == (3, C)
    assert counted(epoch * 3, is_wrapped=True) == (150, B)
    assert counted([Kind.BUCKET, *epoch * 3]) == (150, B)
