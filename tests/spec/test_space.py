"""Which cells a spec comes to: what is left out or added, a covering array, what hypotheses need."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsadiag.errors import UsageError
from nsadiag.spec import Matrix, find_spec, load_matrix, select
from nsadiag.spec.covering import covering_array
from nsadiag.spec.space import Space

AXES = """
name: t
command: a.py
axes:
  layers: {values: [1, 2, 5], args: "--l {value}", base: 2}
  mode: {values: {one: {}, two: {args: --two, world_size: 2, gpus: 2, timeout_s: 9}}}
  mask: {values: [x, y, z], args: "--c {value}"}
"""


def load(directory: Path, text: str) -> Matrix:
    (directory / "spec.yaml").write_text(text)
    return load_matrix(directory / "spec.yaml")


def ids(matrix: Matrix, **options: object) -> list[str]:
    return [cell.id for cell in matrix.cells(**options)]  # type: ignore[arg-type]


def test_what_exclude_matches_is_left_out(tmp_path: Path) -> None:
    matrix = load(tmp_path, AXES + "exclude: [{mode: two, mask: [x, y]}, {layers: 5}]\n")
    assert ids(matrix) == [
        f"layers={layers},mode={mode}" for layers in (1, 2)
        for mode in ("one,mask=x", "one,mask=y", "one,mask=z", "two,mask=z")
    ]  # fmt: skip


def test_include_adds_cells_whose_other_factors_are_at_their_base(tmp_path: Path) -> None:
    text = AXES + "strategy: hypotheses\ninclude: [{mask: [z, y]}, {layers: 5, mode: two}, {mask: z}]\n"
    assert ids(load(tmp_path, text)) == ["mask=y", "mask=z", "layers=5,mode=two"]


def test_include_brings_back_what_exclude_left_out(tmp_path: Path) -> None:
    matrix = load(tmp_path, AXES + "exclude: [{mode: two}]\ninclude: [{mode: two}]\n")
    assert [i for i in ids(matrix) if "two" in i] == ["layers=2,mode=two,mask=x"]


def test_a_setting_with_a_command_of_its_own_stands_alone(tmp_path: Path) -> None:
    text = AXES.replace("one: {}", "one: {}, other: {command: b.py --x, args: --y, timeout_s: 0}")
    cells = {cell.id: cell for cell in load(tmp_path, text).cells()}
    assert len(cells) == 19
    cell = cells["layers=2,mode=other,mask=x"]
    assert cell.argv == ["b.py", "--x", "--y"] and cell.timeout_s == 0
    assert cells["layers=2,mode=two,mask=x"].timeout_s == 9 and cells["layers=2,mode=two,mask=x"].gpus == 2
    assert cells["layers=2,mode=one,mask=x"].timeout_s == 300


def test_repeats_may_be_asked_for_in_the_spec_and_changed_on_the_line(tmp_path: Path) -> None:
    matrix = load(tmp_path, AXES + "repeat: 3\n")
    assert len(matrix.cells()) == 54 and len(matrix.cells(repeat=1)) == 18
    assert ids(matrix)[0] == "layers=1,mode=one,mask=x,repeat=1"


def test_pairwise_is_smaller_and_the_same_every_time(tmp_path: Path) -> None:
    matrix = load(tmp_path, AXES + "strategy: pairwise\n")
    assert 9 <= len(matrix.cells()) <= 11
    assert ids(matrix) == ids(matrix) and len(ids(matrix, strategy="all")) == 18
    assert len(ids(matrix, strength=3)) == 18 and len(ids(matrix, strength=1)) == 3


CLAIM = """
hypotheses:
  - {claim: it hangs, vary: {layers: [1, 5]}, where: {mode: [one, two]}, confirmed_if: only b is hung}
"""


def test_pairwise_contains_the_pairs_of_hypotheses(tmp_path: Path) -> None:
    chosen = set(ids(load(tmp_path, AXES + "strategy: pairwise" + CLAIM)))
    pairs = {f"layers={n},mode={m},mask=x" for n in (1, 5) for m in ("one", "two")}
    assert pairs <= chosen
    few = ids(load(tmp_path, AXES + "strategy: hypotheses" + CLAIM))
    assert few == ["layers=1", "layers=1,mode=two", "layers=5", "layers=5,mode=two"]


def test_of_cells_that_hypotheses_choose_the_id_leaves_out_what_is_at_its_base(tmp_path: Path) -> None:
    matrix = load(tmp_path, AXES + "strategy: hypotheses")
    assert ids(matrix) == ["base"] and ids(matrix, repeat=2) == ["base,repeat=1", "base,repeat=2"]
    every = matrix.cells(strategy="all")
    assert [c.id for c in select(every, "layers=2 and mode=one and not y")] == ["base", "mask=z"]
    repeated = matrix.cells(strategy="all", repeat=2)
    wanted = [f"mode=two,mask=y,repeat={n}" for n in (1, 2)]
    assert [c.id for c in select(repeated, "mode=two,mask=y")] == wanted
    assert [c.id for c in select(repeated, "mode=two,mask=y,repeat=2")] == wanted[1:]


def test_a_hypothesis_is_tried_where_all_else_is_equal(tmp_path: Path) -> None:
    matrix = load(tmp_path, AXES + "repeat: 2" + CLAIM)
    (trials,) = matrix.trials(matrix.cells())
    assert [t.context for t in trials] == [{"mode": "one", "mask": "x"}, {"mode": "two", "mask": "x"}]
    assert trials[0].cells == {
        n: [f"layers={n},mode=one,mask=x,repeat={k}" for k in (1, 2)] for n in ("1", "5")
    }  # fmt: skip


def test_anywhere_is_wherever_the_matrix_goes(tmp_path: Path) -> None:
    anywhere = CLAIM.replace("{mode: [one, two]}", "any")
    matrix = load(tmp_path, AXES + "strategy: all" + anywhere)
    assert len(matrix.trials(matrix.cells())[0]) == 6
    matrix = load(tmp_path, AXES + "strategy: hypotheses" + anywhere)
    assert len(matrix.trials(matrix.cells())[0]) == 1
    one_free = CLAIM.replace("[one, two]", "any")
    matrix = load(tmp_path, AXES + one_free)
    assert [t.context["mask"] for t in matrix.trials(matrix.cells())[0]] == ["x", "x"]


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("exclude: [{layer: 1}]", "exclude: no axis is called 'layer'", "did you mean 'layers'"),
        ("exclude: [{layers: 3}]", "exclude: layers is never 3", "known: 1, 2, 5"),
        ("include: [{mode: tow}]", "include: mode is never tow", "did you mean 'two'"),
        ("strategy: pairs", "strategy", ""),
        ("strategy: pairwise\nstrength: 4", "strength is 4", "as many as axes"),
        ("repeat: 0", "repeat", ""),
        ("hypotheses: [{claim: x}]", "vary wants one factor", ""),
        ("hypotheses: [{claim: x, vary: {layers: [1, 5]}}]", "confirmed_if is missing", ""),
        ("hypotheses: [{claim: x, vary: {layers: [1]}, confirmed_if: only b fails}]", "2 or more settings", ""),
        ("hypotheses: [{claim: x, vary: {layers: [1, 1]}, confirmed_if: only b fails}]", "twice", ""),
        ("hypotheses: [{claim: x, vary: {layers: [1, 5]}, confirmed_if: b dies}]", "confirmed_if is 'b dies'", "only b fails"),
        ("hypotheses: [{claim: x, vary: {mode: [one, two]}, confirmed_if: step time is constant}]", "numbers", ""),
        ("hypotheses: [{claim: x, vary: {layers: [1, 5]}, confirmed_if: step time is linear}]", "3 or more", ""),
        ("hypotheses: [{claim: x, vary: {layers: [1, 4]}, confirmed_if: only b fails}]", "layers is never 4", "known"),
        ("hypotheses: [{claim: x, vary: {mode: [one, two]}, where: {mode: one}, confirmed_if: only b fails}]", "which is varied", ""),
        ("hypotheses: [{claim: x, vary: {mode: [one, two]}, where: {mask: q}, confirmed_if: only b fails}]", "mask is never q", ""),
        ("hypotheses: [{claim: x, vary: {mode: [one, two]}, were: {}, confirmed_if: only b fails}]", "unknown key 'were'", "where"),
        ("hypotheses: [{claim: x, vary: {mode: [one, two]}, confirmed_if: only b fails, not_tested: cannot}]", "stands in the place", ""),
        ("exclude: [{mode: two}]\nhypotheses: [{claim: x, vary: {mode: [one, two]}, confirmed_if: only b fails}]", "needs mode=two, which is left out", "exclude"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_in_one_line(tmp_path: Path, text: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, AXES + text + "\n")
    assert message in caught.value.message and "\n" not in caught.value.message + caught.value.hint
    assert hint in caught.value.hint and str(tmp_path) in caught.value.message


def test_a_base_that_is_no_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="base is 3, which is none of the values"):
        load(tmp_path, AXES.replace("base: 2", "base: 3"))


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    sizes = draw(st.lists(st.integers(1, 4), min_size=2, max_size=5))
    axes = {f"f{i}": tuple(map(str, range(size))) for i, size in enumerate(sizes)}
    room = Space(axes=axes, base=dict.fromkeys(axes, "0"))
    patterns = draw(
        st.lists(
            st.dictionaries(st.sampled_from(list(axes)), st.just("0"), min_size=2, max_size=3), max_size=2
        )
    )
    return room.without(patterns)


@settings(max_examples=60, deadline=None)
@given(spaces(), st.integers(1, 3), st.randoms(use_true_random=False))
def test_a_covering_array_has_every_meeting_that_may_be_and_no_cell_that_may_not(
    room: Space, strength: int, random: object
) -> None:
    whole = room.whole()
    strength = min(strength, len(room.axes))
    already = whole[: len(whole) // 5]
    array = covering_array(room, strength, already)
    assert all(room.allows(cell) for cell in array)

    def meetings(cells: list[dict[str, str]]) -> set[tuple[tuple[str, str], ...]]:
        return {
            tuple((n, c[n]) for n in names)
            for c in cells
            for names in itertools.combinations(room.axes, strength)
        }

    assert meetings([*array, *already]) == meetings(whole)
    assert len(array) <= len(whole)


def test_ten_axes_of_three_need_about_twenty_cells() -> None:
    axes = {f"f{i}": ("0", "1", "2") for i in range(10)}
    assert len(covering_array(Space(axes=axes, base={}), 2)) <= 21  # of 59,049; the best known has 14


def test_a_spec_may_extend_another(tmp_path: Path) -> None:
    (tmp_path / "lower.yaml").write_text(AXES + "env: {A: a, B: b}\nrepeat: 2\n")
    matrix = load(
        tmp_path, "extends: lower\nname: upper\nrepeat: 1\nenv: {B: c}\naxes: {mask: {values: [w]}}\n"
    )
    assert (
        ids(matrix)[:2] == ["layers=1,mode=one,mask=w", "layers=1,mode=two,mask=w"] and len(ids(matrix)) == 6
    )
    assert matrix.name == "upper" and matrix.cells()[0].env == {"A": "a", "B": "c"}


@pytest.mark.parametrize(
    ("text", "message"),
    [("extends: nowhere\n", "no such matrix: nowhere"), ("extends: twice\n", "extends another spec itself"),
     ("extends: lower\naxes: [x]\n", "axes")],
)  # fmt: skip
def test_a_spec_cannot_extend_what_is_not_there(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "lower.yaml").write_text(AXES)
    (tmp_path / "twice.yaml").write_text("extends: lower\n")
    with pytest.raises(UsageError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize("name", ["field-reports", "field-reports-full"])
def test_the_matrices_of_the_field_reports_try_every_claim(name: str) -> None:
    matrix = load_matrix(find_spec(name))
    cells = matrix.cells(repeat=1)
    assert len({cell.id for cell in cells}) == len(cells) < 60
    assert max(len(cell.id) for cell in cells) < 128
    for hypothesis, trials in zip(matrix.hypotheses, matrix.trials(cells), strict=True):
        assert hypothesis.not_tested or trials, hypothesis.claim
