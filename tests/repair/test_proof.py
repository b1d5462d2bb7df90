"""Each criterion of the proof of a repair: what meets it, and the wrong patches that it refuses."""

from __future__ import annotations

from nsadiag.evidence.rehearsal.witnessed import Seen
from nsadiag.repair import proof
from nsadiag.repair.change import Change
from nsadiag.repair.proof import Trial
from nsadiag.repair.record import RankRecord, Record

BEFORE = "for batch in loader:\n    loss.backward()\n    optimizer.step()\n    if loss < 1:\n        break\ndist.barrier()\n"
AFTER = BEFORE.replace("loss < 1", "any_rank(loss < 1)")
CHANGE = Change.of({"train.py": BEFORE}, {"train.py": AFTER})
BOTH = (0, 1)


def call(line: int, op: str = "all_reduce", value: str = "g") -> Seen:
    return Seen(
        what="call", op=op, group="0", members=BOTH, place=f"train.py:{line}:main", value=value, finite=True
    )


def step(value: str) -> tuple[Seen, Seen, Seen]:
    """One iteration of the loop."""
    loss = Seen(what="loss", place="train.py:2:main", value=f"loss {value}", finite=True)
    return (
        loss,
        call(2, value=value),
        Seen(what="step", place="train.py:3:main", value=f"p {value}", finite=True),
    )


def agreement() -> Seen:
    return call(4, value="flag")


END = call(6, "barrier", "")
# Rank 0 leaves after two iterations, while rank 1 begins a third.
FAILED = Record(
    answer="differs",
    ranks={
        0: RankRecord(seen=(*step("a"), *step("b"), END), output=("loss 1.5",)),
        1: RankRecord(seen=(*step("a"), *step("b"), *step("c")[:2]), output=("loss 1.5",)),
    },
)
REPAIRED = (*step("a"), agreement(), *step("b"), agreement(), END)


def repaired(*seen: Seen, output: tuple[str, ...] = ("loss 1.25",), rank_1: tuple[Seen, ...] = ()) -> Record:
    """Both ranks alike, unless rank 1 has seen something else."""
    own = seen or REPAIRED
    ranks = {0: RankRecord(seen=own, output=output), 1: RankRecord(seen=rank_1 or own, output=output)}
    return Record(answer="agreed", ranks=ranks)


def trial(after: Record, *, before: Record = FAILED, change: Change = CHANGE, **more: object) -> Trial:
    return Trial(change=change, before=before, after=after, **more)  # type: ignore[arg-type]


def test_a_right_repair_meets_every_criterion() -> None:
    rows = [criterion(trial(repaired())) for criterion in proof.CRITERIA]
    assert not [row for row in rows if not row.met]


def test_values_are_compared_up_to_the_first_meeting_at_different_lines() -> None:
    assert FAILED.drift == {0: 6, 1: 6}
    after = repaired(*step("a"), agreement(), *step("b"), agreement(), *step("other"), END)
    assert proof.same_values(trial(after)).met


def test_a_patch_that_changes_what_is_computed_before_the_drift_is_refused() -> None:
    shown = proof.same_values(trial(repaired(*step("a"), agreement(), *step("x"), agreement(), END)))
    assert not shown.met and "train.py:2" in shown.because


def test_a_patch_that_doubles_a_step_is_refused_by_the_values() -> None:
    loss, gradient, stepped = step("a")
    assert not proof.same_values(trial(repaired(loss, gradient, stepped, stepped, *step("b"), END))).met


def test_nothing_is_shown_where_ranks_part_before_they_compute() -> None:
    before = Record(answer="differs", ranks={0: RankRecord(seen=(END,)), 1: RankRecord(seen=step("a"))})
    assert not proof.same_values(trial(repaired(), before=before)).met


def test_a_patch_that_trains_otherwise_after_the_drift_is_refused_by_one_rank_alone() -> None:
    plain, other = (
        Record(answer="agreed", ranks={0: RankRecord(seen=(*step("a"), *step(value), END))}) for value in "bx"
    )
    assert proof.same_alone(trial(repaired(), alone=(plain, plain))).met
    assert not proof.same_alone(trial(repaired(), alone=(plain, other))).met


def test_a_patch_with_which_one_rank_alone_fails_is_refused() -> None:
    plain = Record(answer="agreed", ranks={0: RankRecord(seen=step("a"))})
    assert not proof.same_alone(trial(repaired(), alone=(plain, Record(answer="raised")))).met


def test_numbers_that_are_no_longer_finite_are_refused() -> None:
    bad = Seen(what="loss", place="train.py:2:main", value="nan", finite=False)
    assert not proof.all_finite(trial(repaired(*REPAIRED, bad))).met


def test_numbers_that_were_not_finite_before_either_are_no_fault_of_the_patch() -> None:
    bad = Seen(what="loss", place="train.py:2:main", value="nan", finite=False)
    before = Record(answer="differs", ranks={0: RankRecord(seen=(bad,)), 1: RankRecord(seen=(bad,))})
    assert proof.all_finite(trial(repaired(bad), before=before)).met


def test_a_patch_without_a_call_that_was_made_is_refused() -> None:
    shown = proof.calls_kept(trial(repaired(*REPAIRED[:-1])))
    assert not shown.met and "barrier of train.py:6" in shown.because


def test_a_call_that_moves_to_a_new_line_is_kept() -> None:
    moved = Change.of(
        {"train.py": BEFORE}, {"train.py": BEFORE.replace("dist.barrier()", "if True:\n    dist.barrier()")}
    )
    after = repaired(*step("a"), *step("b"), call(7, "barrier", ""))
    assert proof.calls_kept(trial(after, change=moved)).met


def file(path: str) -> Seen:
    return Seen(what="file", path=path)


def test_a_file_that_more_ranks_write_is_refused() -> None:
    before = repaired(file("model.pt"), rank_1=(END,))
    shown = proof.files_kept(trial(repaired(file("model.pt")), before=before))
    assert not shown.met and "model.pt is written by ranks 0, 1" in shown.because


def test_a_file_behind_the_failure_may_be_written_by_one_rank_and_not_by_several() -> None:
    assert proof.files_kept(trial(repaired(file("model.pt"), rank_1=(END,)))).met
    assert not proof.files_kept(trial(repaired(file("model.pt")))).met


def test_what_ranks_save_together_may_not_lie_in_two_places() -> None:
    # `f"{self.folder}/{step}"`, and only the rank that made the folder has one.
    apart = repaired(file("/tmp/a/6/__0_0.distcp"), rank_1=(file("/job/None/6/__1_0.distcp"),))
    shown = proof.files_kept(trial(apart))
    assert not shown.met and "below /job/None/#" in shown.because
    assert proof.files_kept(trial(apart, before=apart)).met  # so it was before
    together = repaired(file("/tmp/a/6/__0_0.distcp"), rank_1=(file("/tmp/a/6/__1_0.distcp"),))
    assert proof.files_kept(trial(together)).met
    of_ranks = repaired(file("/job/rank0/log.txt"), rank_1=(file("/job/rank1/log.txt"),))
    assert proof.files_kept(trial(of_ranks)).met


def test_a_file_that_is_no_longer_written_is_refused() -> None:
    assert not proof.files_kept(trial(repaired(), before=repaired(file("model.pt")))).met


def test_a_rank_that_makes_fewer_steps_than_before_the_failure_is_refused() -> None:
    assert not proof.steps_kept(trial(repaired(*step("a"), END))).met


def test_fewer_steps_than_one_rank_alone_are_refused_unless_the_patch_says_so() -> None:
    alone = Record(
        answer="agreed",
        ranks={0: RankRecord(seen=(*step("a"), *step("b"), *step("c"), *step("d"), *step("e")))},
    )
    assert not proof.steps_kept(trial(repaired(), alone=(alone, alone))).met
    assert proof.steps_kept(trial(repaired(), alone=(alone, alone), cost="batches are left out")).met


def test_a_cost_that_cannot_be_counted_is_refused() -> None:
    after = Record(answer="agreed", ranks={0: RankRecord(seen=(END,)), 1: RankRecord(seen=(END,))})
    before = Record(answer="differs", ranks={0: RankRecord(seen=(END,)), 1: RankRecord(seen=(END,))})
    assert proof.steps_kept(trial(after, before=before)).met
    assert not proof.steps_kept(trial(after, before=before, cost="all ranks leave as soon as one does")).met


def test_two_steps_after_one_backward_are_refused() -> None:
    loss, gradient, stepped = step("b")
    assert not proof.steps_kept(trial(repaired(*step("a"), loss, gradient, stepped, stepped, END))).met


def test_a_kind_of_line_that_is_no_longer_printed_is_refused() -> None:
    assert not proof.output_kept(trial(repaired(output=("done",)))).met


def test_lines_that_more_ranks_print_are_said() -> None:
    quiet = Record(answer="differs", ranks={0: RankRecord(output=("score 1",)), 1: RankRecord()})
    shown = proof.output_kept(trial(repaired(output=("score 2",)), before=quiet))
    assert shown.met and "1 kind of line by more ranks" in shown.because
    assert "more ranks" not in proof.output_kept(trial(repaired())).because


def test_what_one_rank_alone_had_may_be_printed_by_all_and_not_the_reverse() -> None:
    with_none, with_values = ("step 9: scores None",), ("step 9: scores [0.25, 0.75]",)
    before = Record(
        answer="differs", ranks={0: RankRecord(output=with_none), 1: RankRecord(output=with_none)}
    )
    assert proof.output_kept(trial(repaired(output=with_values), before=before)).met
    before = Record(
        answer="differs", ranks={0: RankRecord(output=with_values), 1: RankRecord(output=with_values)}
    )
    assert not proof.output_kept(trial(repaired(output=with_none), before=before)).met


def test_a_new_call_that_one_rank_makes_more_often_is_refused() -> None:
    after = repaired(rank_1=(*REPAIRED, agreement()))
    assert not proof.meetings_reached(trial(after)).met


def test_a_new_call_that_no_rank_reaches_is_refused() -> None:
    unreached = Change.of({"train.py": BEFORE}, {"train.py": f"{BEFORE}if never:\n    dist.all_reduce(x)\n"})
    shown = proof.meetings_reached(trial(repaired(*step("a"), *step("b"), END), change=unreached))
    assert not shown.met and "train.py:8" in shown.because


def given_by_rank_0() -> Change:
    helper = "def of_rank_0(value):\n    dist.broadcast_object_list([value])\n"
    return Change.of(
        {"train.py": BEFORE}, {"train.py": f"{helper}{BEFORE.replace('in loader', 'in of_rank_0(loader)')}"}
    )


def lossy(*values: str) -> tuple[Seen, ...]:
    return tuple(Seen(what="loss", place="train.py:2:main", value=value, finite=True) for value in values)


def test_ranks_that_are_given_another_ones_data_are_refused() -> None:
    before = Record(answer="differs", ranks={0: RankRecord(seen=(END,)), 1: RankRecord(seen=(END,))})
    alike = repaired(*lossy("a", "b"), END)
    shown = proof.ranks_differ(trial(alike, before=before, change=given_by_rank_0()))
    assert not shown.met and "compute the same" in shown.because
    own = repaired(*lossy("a", "b"), END, rank_1=(*lossy("a", "c"), END))
    assert proof.ranks_differ(trial(own, before=before, change=given_by_rank_0())).met
    assert proof.ranks_differ(trial(alike, before=before)).met  # nobody is given anything


def test_ranks_that_had_the_same_data_before_may_have_them_still() -> None:
    seen = (*lossy("a", "b"), END)
    before = Record(answer="differs", ranks={0: RankRecord(seen=seen), 1: RankRecord(seen=seen)})
    assert proof.ranks_differ(trial(repaired(*seen), before=before, change=given_by_rank_0())).met


def test_replicas_that_part_behind_the_patch_are_refused() -> None:
    assert proof.replicas_alike(trial(repaired())).met
    parted = repaired(*step("a"), *step("b"), END, rank_1=(*step("a"), *step("x"), END))
    shown = proof.replicas_alike(trial(parted))
    assert not shown.met and "after step 2" in shown.because


def test_ranks_with_parameters_of_their_own_are_no_replicas() -> None:
    before = Record(answer="differs", ranks={0: RankRecord(seen=step("a")), 1: RankRecord(seen=step("x"))})
    after = repaired(*step("a"), END, rank_1=(*step("x"), END))
    assert proof.replicas_alike(trial(after, before=before)).met


def test_ranks_that_reduce_another_ones_numbers_are_refused() -> None:
    own = (*lossy("a"), call(6, value="of rank 0")), (*lossy("b"), call(6, value="of rank 0"))
    before = Record(answer="differs", ranks={n: RankRecord(seen=seen[:1]) for n, seen in enumerate(own)})
    moved = call(8, value="of rank 0")  # line 6 of the old text
    after = repaired(own[0][0], moved, rank_1=(own[1][0], moved))
    shown = proof.ranks_differ(trial(after, before=before, change=given_by_rank_0()))
    assert not shown.met and "train.py:8" in shown.because
    known = Record(answer="differs", ranks={n: RankRecord(seen=seen) for n, seen in enumerate(own)})
    assert proof.ranks_differ(trial(after, before=known, change=given_by_rank_0())).met


DRAWN = "def of_rank_0(value):\n    dist.broadcast_object_list([value])\n    return value\n"


def test_what_a_generator_draws_for_all_is_nobodys_data_and_a_batch_is() -> None:
    after = (*lossy("a"), call(9, value="as often")), (*lossy("b"), call(9, value="as often"))
    before = Record(answer="differs", ranks={n: RankRecord(seen=seen[:1]) for n, seen in enumerate(after)})

    def shown(value: str) -> bool:
        text = f"{DRAWN}{BEFORE.replace('loss < 1', f'of_rank_0({value}) < 1')}"
        change = Change.of({"train.py": BEFORE}, {"train.py": text})
        return proof.ranks_differ(
            trial(repaired(*after[0], rank_1=after[1]), before=before, change=change)
        ).met

    assert shown("random.random()")
    assert not shown("random.choice(batches)")
    assert not shown("loss")


def test_the_input_of_a_broadcast_is_its_roots() -> None:
    root, peer = call(2, "broadcast", "weights"), call(2, "broadcast", "")
    seen = (*lossy("a"), root), (*lossy("b"), peer)
    before = Record(answer="differs", ranks={n: RankRecord(seen=each) for n, each in enumerate(seen)})
    assert proof.same_values(trial(repaired(*seen[0], END, rank_1=(*seen[1], END)), before=before)).met
