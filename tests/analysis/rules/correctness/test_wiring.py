"""Gradients, targets and states that go to the wrong place: what is read of a loss's graph and of a flow, and the lines that are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from nsadiag.analysis.case import Case
from nsadiag.analysis.load import load_cell
from nsadiag.analysis.records import Declined
from nsadiag.analysis.rules.correctness.order.modes import RULES as MODES
from nsadiag.analysis.rules.correctness.order.weights import RULES as WEIGHTS
from nsadiag.analysis.rules.correctness.wiring.loss_weights import RULES as LOSSES
from nsadiag.analysis.rules.correctness.wiring.misplaced_targets import misplaced_targets
from nsadiag.analysis.rules.correctness.wiring.severed_gradients import RULES as SEVERED
from nsadiag.analysis.rules.rule import Draft, Rule
from nsadiag.evidence.layout import RunDir, append_json_line, make_private_dir, write_json
from nsadiag.source.model import SourceModel
from nsadiag.source.patterns.gradient_cuts import cut_between, number_in_loss, reaches_loss
from nsadiag.source.patterns.worker_seeds import seeded_by_number
from nsadiag.worker.probes.autograd import module_calls
from nsadiag.worker.probes.correctness.invariants.checksums import exact_sums
from nsadiag.worker.probes.correctness.invariants.losses import divided, inputs, losses

TARGETS = torch.tensor([0, 1, 2, -100, 3, -100])


def scores() -> torch.Tensor:
    return torch.randn(6, 4, requires_grad=True)


def read(loss: torch.Tensor) -> tuple[float, list[dict[str, Any]]]:
    found = divided(loss.grad_fn)
    return found.number, losses(loss.grad_fn, found.behind)


@pytest.mark.parametrize(
    ("scaled", "number", "direct"),
    [
        (lambda loss: loss / 4, 4.0, True),
        (lambda loss: loss * 0.5 / 3, 6.0, True),
        (lambda loss: loss * torch.tensor(0.25), 4.0, True),
        (lambda loss: loss, 1.0, True),
        (lambda loss: (loss + 1) / 2, 2.0, False),
    ],
)
def test_a_loss_says_what_it_was_divided_by(scaled: Any, number: float, direct: bool) -> None:
    found, (row,) = read(scaled(cross_entropy(scores(), TARGETS)))
    assert found == number
    assert (row["rows"], row["classes"], row["counted"], row["mean"]) == (6, 4, 4, True)
    assert row.get("direct", False) is direct


def test_what_hooks_have_packed_away_is_not_fetched() -> None:
    fetched = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: (fetched.append(t), t)[1]):
        loss = cross_entropy(scores(), TARGETS)
    assert read(loss) == (1.0, [])
    assert not fetched
    loss.backward()
    assert fetched


def test_targets_that_were_not_shifted_are_told_from_those_that_were() -> None:
    ids = torch.arange(12).view(2, 6) % 5
    inputs.given((ids,), {})
    logits = torch.randn(2, 5, 5, requires_grad=True).flatten(0, 1)
    assert read(cross_entropy(logits, ids[:, :-1].flatten()))[1][0].get("unshifted")
    assert not read(cross_entropy(logits, ids[:, 1:].flatten()))[1][0].get("unshifted")


def test_calls_are_seen_everywhere_for_a_while_and_then_as_was_asked_for_last() -> None:
    with module_calls.observed_calls():
        module_calls.observe_all(True)
        module_calls.observe(1, everywhere=False)
        assert module_calls.observing_everywhere() and module_calls.calls.limit > 1
        module_calls.observe_all(False)
        assert not module_calls.observing_everywhere() and module_calls.calls.limit == 1


# -- rules, on rows as ranks write them -----------------------------------------------------------


def case_of(path: Path, rows: dict[int, list[list[dict[str, Any]]]]) -> Case:
    """By rank, the operations of each step but the optimizer's."""
    run = RunDir(path=path)
    for rank, steps in rows.items():
        directory = run.rank(rank)
        make_private_dir(directory.path)
        write_json(directory.meta, {"rank": rank, "world_size": len(rows), "pid": 100 + rank})
        for step, operations in enumerate(steps):
            stepped = {"kind": "step", "place": "train.py:11:main", "optimizer": 0, "name": "SGD"}
            append_json_line(directory.invariants, {"step": step, "operations": [*operations, stepped]})
    return Case(load_cell(path))


def drafts(found: Any) -> list[Draft]:
    return [each for each in found if not isinstance(each, Declined)]


def concluded(rules: tuple[Rule, ...], case: Case) -> list[Draft]:
    """All that these rules conclude."""
    return [each for rule in rules for each in drafts(rule.check(case))]


def called(name: str, *, graded: int, given: bool, made: bool, values: tuple[int, int]) -> dict[str, Any]:
    return {
        "name": name, "place": f"train.py:{len(name)}:forward", "held": 2, "graded": graded,
        "given": [[values[0], given]], "made": [[values[1], made]],
    }  # fmt: skip


def flow(carries: bool, used: bool, body_graded: int) -> list[list[dict[str, Any]]]:
    head = called("head", graded=2, given=carries, made=True, values=(70 if used else 71, 80))
    body = called("body", graded=body_graded, given=False, made=True, values=(60, 70))
    return [[{"kind": "flow", "optimizer": 0, "calls": [body, head]}]] * 4


def test_a_module_whose_output_goes_on_without_a_gradient_is_cut_off(tmp_path: Path) -> None:
    steps = flow(carries=False, used=True, body_graded=0)
    (found,) = concluded(SEVERED, case_of(tmp_path, {0: steps, 1: steps}))
    assert found.where is not None and found.where.module == "body"


@pytest.mark.parametrize(
    "healthy",
    [
        flow(carries=False, used=False, body_graded=0),  # nothing uses its output
        flow(carries=False, used=True, body_graded=2),  # its gradient comes by another way
        flow(carries=True, used=True, body_graded=2),
    ],
)
def test_modules_that_nothing_uses_or_that_get_gradients_are_left_alone(
    tmp_path: Path, healthy: list[list[dict[str, Any]]]
) -> None:
    assert not concluded(SEVERED, case_of(tmp_path, {0: healthy, 1: healthy}))


def losses_of(counted: int, divisor: float | None = None, rows: int = 64) -> list[list[dict[str, Any]]]:
    term = {"rows": rows, "classes": 9, "direct": True, "mean": True, "counted": counted}
    reduced = {"kind": "collective", "name": "all_reduce", "reduces": "SUM", "roles": ["gradient a.weight"]}
    backward = {"kind": "backward", "place": "train.py:9:main", "losses": [term], "divisor": divisor}
    return [[backward, reduced]] * 8


def test_a_mean_over_own_tokens_weighs_the_tokens_of_two_ranks_unlike(tmp_path: Path) -> None:
    (found,) = concluded(LOSSES, case_of(tmp_path, {0: losses_of(20), 1: losses_of(60)}))
    assert "mean over its own tokens" in found.summary


@pytest.mark.parametrize(
    "other",
    [
        losses_of(25),  # nearly as many
        losses_of(60, divisor=1 / 3),  # weighted by what it has more
        losses_of(60, rows=192),  # a larger batch, which a rank may have by design
        [*losses_of(60)[:4], *losses_of(10)[:4]],  # now more, now fewer
    ],
)
def test_tokens_that_weigh_alike_or_by_chance_unlike_are_left_alone(
    tmp_path: Path, other: list[list[dict[str, Any]]]
) -> None:
    assert not concluded(LOSSES, case_of(tmp_path, {0: losses_of(20), 1: other}))


def test_domains_that_weigh_unlike_weigh_one_on_average(tmp_path: Path) -> None:
    shares = {0: losses_of(60, divisor=1 / 1.6), 1: losses_of(60, divisor=1 / 0.4)}
    assert not concluded(LOSSES, case_of(tmp_path / "shares", shares))
    (found,) = concluded(
        LOSSES, (case_of(tmp_path / "one", {0: losses_of(60), 1: losses_of(60, divisor=1 / 4)}))
    )
    assert found.guilty_ranks == (1,)


def accumulated(used: float, **how: Any) -> list[list[dict[str, Any]]]:
    """Steps of two backwards, and what the optimizer uses of gradients of 8."""
    made, left = (["a.weight", [40], 7, 8.0, 8.0], ["a.weight", [40], 8, 8.0 * used, 8.0 * used])
    backward = {"kind": "backward", "place": "train.py:9:main", "divisor": 2.0, **how}
    kept = [{"kind": kind, "optimizer": 0, "values": [v]} for kind, v in (("made", made), ("used", left))]
    return [[backward, backward, *kept]] * 8


def weighed(case: Case) -> list[Draft]:
    """All that rows on how often a gradient counts conclude."""
    return concluded(WEIGHTS, case)


def test_micro_batches_are_divided_twice_where_both_divisions_were_seen(tmp_path: Path) -> None:
    twice = accumulated(0.5, divisions=[2.0], averaged=True)
    (found,) = weighed(case_of(tmp_path, {0: twice, 1: twice}))
    assert "divided by 2 again" in found.summary


@pytest.mark.parametrize(
    "healthy",
    [
        accumulated(0.5, averaged=True),  # half of the loss, and one division
        accumulated(1.0, divisions=[2.0], averaged=True),
        accumulated(1.0, divisions=[2.0, 2.0], divisor=4.0, averaged=True),  # half of the loss again
        accumulated(0.5, divisions=[2.0]),  # the mean of two terms, which is divided then
    ],
)
def test_a_coefficient_of_the_loss_is_no_division(
    tmp_path: Path, healthy: list[list[dict[str, Any]]]
) -> None:
    assert not weighed(case_of(tmp_path, {0: healthy, 1: healthy}))


def windows(
    *sizes: int, by: float | None = None, again: float = 1.0, mean: bool = True
) -> list[list[dict[str, Any]]]:
    """Steps of so many backwards, each from a loss that is divided by their number, or `by` a number of its own."""
    made, used = (["a.weight", [40], 7, 8.0 * of, 8.0 * of] for of in (1.0, again))
    kept = [{"kind": kind, "optimizer": 0, "values": [v]} for kind, v in (("made", made), ("used", used))]
    return [[backward_of(by or number, mean)] * number + kept for number in sizes]


def backward_of(by: float, mean: bool) -> dict[str, Any]:
    backward = {"kind": "backward", "place": "train.py:9:main", "averaged": mean}
    return {**backward, "divisor": by, "divisions": [by]} if by != 1 else backward


def test_the_rest_of_an_epoch_is_divided_by_as_many_as_it_holds(tmp_path: Path) -> None:
    rest = windows(4, 4, 1, 4, 4, 1, 4, 4, 1, by=4.0)
    (found,) = weighed(case_of(tmp_path, {0: rest, 1: rest}))
    assert "Step 2 takes 1 of the usual 4 micro-batches" in found.summary
    assert found.where is not None and found.where.step == 2


@pytest.mark.parametrize(
    "healthy",
    [
        windows(4, 4, 1, 4, 4, 1, 4, 4, 1),  # by as many as there are
        windows(4, 4, 1, 4, 4, 1, 4, 4, 1, by=4.0, again=4.0),  # made larger again afterwards
        windows(4, 4, 1, 4, 4, 1, 4, 4, 1, by=4.0, mean=False),  # of sums, the number may be another's
        windows(4, 4, 4, 4, 2, 2, 2, 2, by=4.0),  # fewer from some step on
        windows(4, 4, 4, 4, 4, 4, 4, 4, 1, by=4.0),  # once, at the end
        windows(4, 4, 1, 4, 4, 1, 4, 4, 1, by=8.0),  # it counts something else
    ],
)
def test_windows_that_weigh_alike_or_were_changed_on_purpose_are_left_alone(
    tmp_path: Path, healthy: list[list[dict[str, Any]]]
) -> None:
    assert not weighed(case_of(tmp_path, {0: healthy, 1: healthy}))


def modes(*evaluating: bool, depends: bool = True) -> list[list[dict[str, Any]]]:
    return [
        [{"kind": "forward", "name": "Net", "place": "train.py:8:main", "evaluating": each, "depends_on_mode": each and depends},
         {"kind": "backward", "place": "train.py:9:main"}]
        for each in evaluating
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("steps", "accused"),
    [
        (modes(False, False, *[True] * 5), True),
        (modes(*[True] * 7), False),
        (modes(False, True, True, True, True, False), False),
        (modes(False, False, *[True] * 5, depends=False), False),
    ],
)
def test_a_model_that_trained_in_train_mode_returns_to_it(
    tmp_path: Path, steps: list[list[dict[str, Any]]], accused: bool
) -> None:
    (rule,) = MODES
    assert bool(drafts(rule.check(case_of(tmp_path, {0: steps, 1: steps})))) == accused


@pytest.mark.parametrize(
    ("first", "accused"), [((5, 5), True), ((5, 6), False), ((0, 0), False), ((5, 0), False)]
)
def test_labels_from_zero_are_wrong_where_all_ranks_compare_the_same_rows_first(
    tmp_path: Path, first: tuple[int, int], accused: bool
) -> None:
    def steps(rank: int) -> list[list[dict[str, Any]]]:
        term = {"rows": 6, "classes": 12, "is_range": True, "compared_first": first[rank]}
        return [
            [
                {"kind": "forward", "values": [["input 0", [6, 9], 90 * rank + step, 1.0, 4.0]]},
                {"kind": "collective", "name": "all_gather"},
                {"kind": "backward", "place": "train.py:9:main", "losses": [term]},
            ]
            for step in range(8)
        ]

    found = drafts(misplaced_targets(case_of(tmp_path, {0: steps(0), 1: steps(1)})))
    assert bool(found) is accused


def test_the_rows_that_scores_are_a_product_with_are_known_again() -> None:
    asked, keys = torch.randn(6, 5, requires_grad=True), torch.randn(12, 5)
    for logits in (asked @ keys.T / 0.1, torch.tensor(3.0, requires_grad=True) * (asked @ keys.T)):
        (found,) = losses(cross_entropy(logits, torch.arange(6)).grad_fn, None)
        assert found["compared_first"] == int(exact_sums([keys[:6]])[0])
    plain = cross_entropy(asked @ keys.T, torch.arange(6).flip(0))
    assert "compared_first" not in losses(plain.grad_fn, None)[0]


# -- lines ------------------------------------------------------------------------------------------

SOURCE = """
hidden = body(batch)
hidden = norm(hidden).detach()
output = head(hidden)
dist.all_gather(every, output)
dist.all_gather(shown, output)
scores = one @ torch.cat(every).T
loss = criterion(scores, labels)
loss = loss + 0.1 * energy.item()
watched = torch.cat(shown).mean() + energy.item()
loss.backward()
"""


def test_the_lines_at_which_a_gradient_is_lost_are_found() -> None:
    code = SourceModel({"/u/train.py": SOURCE})
    cut, number = cut_between(code, "/u/train.py", 2, 4), number_in_loss(code)
    assert cut is not None and cut.line == 3
    assert number is not None and number.line == 9
    assert cut_between(code, "/u/train.py", 4, 6) is None
    assert reaches_loss(code, "/u/train.py", 5)
    assert not reaches_loss(code, "/u/train.py", 6)


def test_a_loss_that_is_scaled_by_its_own_size_adds_no_number() -> None:
    code = SourceModel({"/u/train.py": "loss = loss * (1 / loss.item())\nloss.backward()\n"})
    assert number_in_loss(code) is None


@pytest.mark.parametrize(
    ("seeding", "alike"),
    [
        ("torch.manual_seed(worker)", True),
        ("np.random.seed(SEED + worker)", True),
        ("torch.manual_seed(torch.initial_seed() % 2**32)", False),
        ("np.random.seed(SEED + worker + 100 * RANK)", False),
        ("random.seed(f(worker))", False),
    ],
)
def test_workers_are_alike_where_their_number_is_all_that_seeds_them(seeding: str, alike: bool) -> None:
    text = f"""
SEED = 7
RANK = int(os.environ["RANK"])
class Noisy(Dataset):
    def __getitem__(self, index):
        return torch.randn(3)
def start(worker):
    {seeding}
loader = DataLoader(Noisy(), num_workers=2, worker_init_fn=start)
"""
    assert (seeded_by_number(SourceModel({"/u/train.py": text})) is not None) is alike


def test_a_dropout_of_nothing_is_known_again_as_the_value_it_was_given() -> None:
    value = torch.randn(5, 7)
    view, copy = exact_sums([value.t()]), exact_sums([nn.Dropout(0.0)(value).detach().clone()])
    assert exact_sums([value]) == copy
    assert int(view[0]) == int(copy[0])
