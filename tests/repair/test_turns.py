"""Where ranks leave a changed branch by different sides, by paths as a rehearsal records them."""

from __future__ import annotations

import array

from nsadiag.evidence.rehearsal.paths import NUMBER, WHAT, Named, Walked, Word
from nsadiag.evidence.rehearsal.witnessed import Seen
from nsadiag.repair import proof
from nsadiag.repair.change import Change
from nsadiag.repair.proof import Trial
from nsadiag.repair.record import RankRecord, Record
from nsadiag.repair.turns import parting

# Rank 0 leaves out its second batch, and gives its third where rank 1 gives its second: at one line.
BEFORE = "def train(batches):\n    for batch in batches:\n        if not batch:\n            continue\n        reduce(batch)\n"
CHANGE = Change.of({"t.py": BEFORE}, {"t.py": BEFORE.replace("not batch", "any_rank(not batch)")})
AFTER_THE_BRANCH = {True: 4, False: 5}  # by whether a batch is left out
CODE = Named(number=1, text="train", file="t.py", line=1)


def rank(*batches: str, folded: bool = False) -> RankRecord:
    """A rank that gives these batches to the call in line 5, and leaves out the empty ones."""
    words, calls = [(Word.ENTER, 1, 1)], 0
    for batch in batches:
        words += [(Word.LINE, 0, 2), (Word.LINE, 0, 3), (Word.LINE, 0, AFTER_THE_BRANCH[not batch])]
        if batch:
            calls += 1
            words.append((Word.CALL, 2, calls))
        if folded:
            words.append((Word.FOLDED, 1, 2))
    path = array.array("Q", (what << WHAT | number << NUMBER | low for what, number, low in words))
    seen = tuple(
        Seen(what="call", op="all_reduce", members=(0, 1), place="t.py:5:train", value=batch)
        for batch in batches
        if batch
    )
    return RankRecord(seen=seen, walked=Walked(words=path, names={1: CODE}, is_whole=True))


def of(*ranks: RankRecord, answer: str = "differs") -> Record:
    return Record(answer=answer, ranks=dict(enumerate(ranks)))


FAILED = of(rank("a", "", "c"), rank("A", "B", "C"))


def test_ranks_part_where_one_leaves_out_what_the_other_takes() -> None:
    assert parting(FAILED, CHANGE) == (("t.py", 3), {0: 1, 1: 1})


def test_a_patch_is_compared_up_to_where_ranks_part_at_its_branch() -> None:
    repaired = of(rank("a", "c"), rank("A", "C"), answer="agreed")
    shown = proof.same_values(Trial(change=CHANGE, before=FAILED, after=repaired))
    assert (shown.met, shown.because) == (
        True,
        "2 values equal up to the first drift, where ranks part at t.py:3",
    )


def test_ranks_part_where_one_handles_an_exception_of_a_changed_statement() -> None:
    before = "def train(batches):\n    for batch in batches:\n        try:\n            cut(batch)\n        except ValueError:\n            continue\n        reduce(batch)\n"
    change = Change.of({"t.py": before}, {"t.py": before.replace("cut(batch)", "agreed(cut, batch)")})
    words = [(Word.ENTER, 1, 1)]
    for call, handler in enumerate((7, 7, 5), 1):
        words += [(Word.LINE, 0, 4), (Word.LINE, 0, handler), (Word.CALL, 2, call)]
    raised, taken = (
        RankRecord(
            seen=rank("a", "b", "c").seen,
            walked=Walked(
                words=array.array("Q", (w << WHAT | n << NUMBER | low for w, n, low in own)),
                names={1: CODE},
                is_whole=True,
            ),
        )
        for own in (words, [(w, n, 7 if low == 5 else low) for w, n, low in words])
    )
    assert parting(of(raised, taken), change) == (("t.py", 4), {0: 2, 1: 2})


def test_what_differs_before_ranks_part_is_not_excused() -> None:
    repaired = of(rank("x", "c"), rank("A", "C"), answer="agreed")
    assert not proof.same_values(Trial(change=CHANGE, before=FAILED, after=repaired)).met


def test_a_side_that_ranks_never_took_together_is_no_drift() -> None:
    assert parting(of(rank("", "c"), rank("A", "C")), CHANGE) is None


def test_ranks_that_make_as_many_calls_on_either_side_have_not_parted() -> None:
    alike = of(*(replaced(rank("a", "b", "c"), 5, 4, own) for own in (False, True)))
    assert parting(alike, CHANGE) is None


def replaced(found: RankRecord, line: int, by: int, wanted: bool) -> RankRecord:
    """Where it is wanted, another line at its second occurrence, as of a side that goes on to the same call."""
    words = list(found.walked.words) if found.walked else []
    at = [n for n, word in enumerate(words) if word == Word.LINE << WHAT | line]
    if wanted:
        words[at[1]] = Word.LINE << WHAT | by
    path = Walked(words=array.array("Q", words), names={1: CODE}, is_whole=True)
    return RankRecord(seen=found.seen, walked=path)


def test_a_branch_that_the_patch_leaves_alone_is_no_drift() -> None:
    other = Change.of({"t.py": BEFORE}, {"t.py": BEFORE.replace("reduce(batch)", "reduce(batch * 2)")})
    assert parting(FAILED, other) is None


def test_a_path_with_gaps_says_nothing_behind_them() -> None:
    assert parting(of(rank("a", "", "c", folded=True), rank("A", "B", "C", folded=True)), CHANGE) is None
