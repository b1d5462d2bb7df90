"""A matrix file becomes cells, and a mistake in it is named with its file, its key and the nearest right one."""

from pathlib import Path

import pytest

from nsadiag.errors import EXIT_USAGE, UsageError
from nsadiag.spec import BUILT_IN, Cell, Matrix, find_spec, load_matrix, select

GOOD = """
name: tiny
command: train.py --steps 3
axes:
  layers: {values: [1, 2, 12], args: "--layers {value}", env: {DEPTH: "{value}"}}
  mode:
    values:
      one: {world_size: 1}
      two: {args: --two, env: {BACKEND: gloo}, world_size: 2}
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "spec.yaml"
    path.write_text(text)
    return path


def load(directory: Path, text: str) -> Matrix:
    return load_matrix(write(directory, text))


def refused(directory: Path, text: str) -> UsageError:
    """The error that loading it and making its cells gives."""
    with pytest.raises(UsageError) as caught:
        load(directory, text).cells()
    error = caught.value
    assert str(directory / "spec.yaml") in error.message
    assert "\n" not in error.message + error.hint
    assert error.hint and error.exit_code == EXIT_USAGE
    return error


def ids(cells: list[Cell]) -> list[str]:
    return [cell.id for cell in cells]


def test_cells_are_every_combination_with_the_last_axis_fastest(tmp_path: Path) -> None:
    assert ids(load(tmp_path, GOOD).cells()) == [
        "layers=1,mode=one", "layers=1,mode=two", "layers=2,mode=one",
        "layers=2,mode=two", "layers=12,mode=one", "layers=12,mode=two",
    ]  # fmt: skip


def test_a_cell_has_the_arguments_and_variables_of_all_its_factors(tmp_path: Path) -> None:
    cell = load(tmp_path, GOOD).cells()[3]
    assert cell.argv == ["train.py", "--steps", "3", "--layers", "2", "--two"]
    assert cell.env == {"DEPTH": "2", "BACKEND": "gloo"}
    assert cell.world_size == 2
    assert cell.factors == {"layers": "2", "mode": "two"}
    assert cell.command() == ["torchrun", "--standalone", "--nproc-per-node", "2", *cell.argv]


def test_an_axis_overrides_the_matrix_and_a_later_axis_an_earlier_one(tmp_path: Path) -> None:
    text = """
name: tiny
command: train.py
world_size: 4
env: {A: matrix, B: matrix, C: matrix}
axes:
  first: {values: {x: {env: {B: first, C: first}, world_size: 2}, y: {}}}
  second: {values: {x: {env: {C: second}}, y: {world_size: 3}}}
"""
    cells = {cell.id: cell for cell in load(tmp_path, text).cells()}
    assert cells["first=x,second=x"].env == {"A": "matrix", "B": "first", "C": "second"}
    assert cells["first=y,second=x"].env == {"A": "matrix", "B": "matrix", "C": "second"}
    sizes = {name: cell.world_size for name, cell in cells.items()}
    assert sizes == {
        "first=x,second=x": 2, "first=x,second=y": 3, "first=y,second=x": 4, "first=y,second=y": 3,
    }  # fmt: skip


def test_values_are_labelled_as_yaml_spells_them(tmp_path: Path) -> None:
    text = 'name: t\ncommand: a.py\naxes: {x: {values: [1, 2.5, true, null, "a b"], args: "--x {value}"}}'
    cells = load(tmp_path, text).cells()
    assert [cell.factors["x"] for cell in cells] == ["1", "2.5", "true", "null", "a b"]


def test_arguments_are_split_as_a_shell_would(tmp_path: Path) -> None:
    text = "name: t\ncommand: a.py\naxes: {x: {values: [a b, --y 1], args: \"'{value}' {value}\"}}"
    first, second = load(tmp_path, text).cells()
    assert first.argv == ["a.py", "a b", "a", "b"]
    assert second.argv == ["a.py", "--y 1", "--y", "1"]


def test_a_slash_in_a_value_does_not_become_a_directory(tmp_path: Path) -> None:
    text = "name: t\ncommand: a.py\naxes: {data: {values: [../up, /abs/path]}}"
    assert ids(load(tmp_path, text).cells()) == ["data=..-up", "data=-abs-path"]


def test_repeats_are_cells_of_their_own(tmp_path: Path) -> None:
    cells = load(tmp_path, GOOD).cells(repeat=2)
    assert len(cells) == 12
    assert ids(cells)[:3] == [
        "layers=1,mode=one,repeat=1", "layers=1,mode=one,repeat=2", "layers=1,mode=two,repeat=1",
    ]  # fmt: skip
    assert cells[0].argv == cells[1].argv


def test_the_built_in_matrix_has_36_cells() -> None:
    cells = load_matrix(find_spec(BUILT_IN)).cells()
    assert len({cell.id for cell in cells}) == 36
    assert {cell.world_size for cell in cells if cell.factors["parallel"] == "single"} == {1}
    assert {cell.world_size for cell in cells if cell.factors["parallel"] != "single"} == {2}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("layers=1", ["layers=1,mode=one", "layers=1,mode=two"]),
        ("layers=12 and two", ["layers=12,mode=two"]),
        ("not layers=1 and not layers=12", ["layers=2,mode=one", "layers=2,mode=two"]),
        ("mode=two and (layers=1 or layers=2)", ["layers=1,mode=two", "layers=2,mode=two"]),
        ("layers=2 or layers=1 and mode=two", ["layers=1,mode=two", "layers=2,mode=one", "layers=2,mode=two"]),
        ("not (one or layers=2)", ["layers=1,mode=two", "layers=12,mode=two"]),
        ("not not layers=2 and one", ["layers=2,mode=one"]),
    ],
)  # fmt: skip
def test_an_expression_selects_cells(tmp_path: Path, expression: str, expected: list[str]) -> None:
    assert ids(select(load(tmp_path, GOOD).cells(), expression)) == expected


@pytest.mark.parametrize("expression", ["", "and", "a and", "(a", "a)", "not", "a b", "or a", "()"])
def test_an_expression_that_cannot_be_read_is_refused(tmp_path: Path, expression: str) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        select(load(tmp_path, GOOD).cells(), expression)


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("layers=3", "layers: 1, 2, 12"),
        ("layer=1 and mode=one", "did you mean layers? layers: 1, 2, 12"),
        ("nothing", "the axes are layers: 1, 2, 12; mode: "),
    ],
)
def test_an_expression_that_selects_nothing_shows_what_there_is(
    tmp_path: Path, expression: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        select(load(tmp_path, GOOD).cells(), expression)
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("wrong", "right", "near"),
    [
        ("comand:", "command:", "command"),
        ("axis:", "axes:", "axes"),
        ("vales:", "values:", "values"),
        ("arg:", "args:", "args"),
        ("worldsize:", "world_size:", "world_size"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one(
    tmp_path: Path, wrong: str, right: str, near: str
) -> None:
    error = refused(tmp_path, GOOD.replace(right, wrong, 1))
    assert repr(wrong.rstrip(":")) in error.message
    assert f"did you mean {near!r}?" in error.hint


def test_an_unknown_key_like_no_other_lists_those_that_are_known(tmp_path: Path) -> None:
    error = refused(tmp_path, GOOD + "zzzz: 1\n")
    assert "'zzzz'" in error.message and "command" in error.hint and "axes" in error.hint


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name: t\naxes: {x: {values: [1]}}", "command"),
        ("command: a.py\naxes: {x: {values: [1]}}", "name"),
        ("name: a/b\ncommand: a.py\naxes: {x: {values: [1]}}", "name"),
        ("name: t\ncommand: ''\naxes: {x: {values: [1]}}", "command"),
        ("name: t\ncommand: a.py 'open\naxes: {x: {values: [1]}}", "command"),
        ("name: t\ncommand: a.py\naxes: {}", "axes"),
        ("name: t\ncommand: a.py\naxes: [x]", "axes"),
        ("name: t\ncommand: a.py\naxes: {x: [1, 2]}", "axes.x"),
        ("name: t\ncommand: a.py\naxes: {x: {values: []}}", "axes.x.values"),
        ("name: t\ncommand: a.py\naxes: {x: {values: 3}}", "axes.x.values"),
        ("name: t\ncommand: a.py\naxes: {x: {values: [[1]]}}", "axes.x.values"),
        ("name: t\ncommand: a.py\naxes: {x: {values: {a: {world_size: 0}}}}", "world_size"),
        ('name: t\ncommand: a.py\naxes: {x: {values: [1], args: "--x \'open"}}', "x"),
        ("name: t\ncommand: a.py\naxes: {x: {values: [1, 1]}}", "x=1"),
        ("name: t\ncommand: a.py\naxes: {x: {values: [a/b, a-b]}}", "x=a-b"),
        ("name: t\ncommand: a.py\naxes: {x: {values: [\"it's\"], args: '{value}'}}", "args"),
        ("name: t\ncommand: a.py\ntimeout_s: soon\naxes: {x: {values: [1]}}", "timeout_s"),
        ("name: t\ncommand: a.py\ntimeout_s: -1\naxes: {x: {values: [1]}}", "timeout_s"),
        ("name: t\ncommand: a.py\nstall_after_s: -1\naxes: {x: {values: [1]}}", "stall_after_s"),
        ("name: t\ncommand: a.py\nenv: {A: [1]}\naxes: {x: {values: [1]}}", "env.A"),
        ("- a\n- b\n", "mapping"),
        ("just words", "mapping"),
        ("", "mapping"),
    ],
)
def test_a_value_of_the_wrong_form_is_named_by_its_key(tmp_path: Path, text: str, named: str) -> None:
    assert named in refused(tmp_path, text).message


def test_text_that_is_not_yaml_is_refused_with_its_line(tmp_path: Path) -> None:
    error = refused(tmp_path, "name: t\ncommand: [a.py\naxes: 3\n")
    assert "is not YAML" in error.message and "line 3" in error.message


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(UsageError, match=r"spec\.yaml"):
        load_matrix(tmp_path / "spec.yaml")


def test_a_matrix_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        find_spec(str(tmp_path / "nowhere.yaml"))
    assert "nowhere.yaml" in caught.value.message and BUILT_IN in caught.value.hint


@pytest.mark.parametrize(
    ("control", "named"),
    [
        ("{laiers: 1}", "laiers"),
        ("{layers: 3}", "layers is never 3"),
        ("{}", "control"),
        ("layers", "control"),
    ],
)
def test_a_control_that_is_no_setting_is_refused(tmp_path: Path, control: str, named: str) -> None:
    error = refused(tmp_path, f"{GOOD}parity: {{control: {control}}}\n")
    assert named in error.message


def test_a_cells_control_has_its_settings_and_the_controls(tmp_path: Path) -> None:
    matrix = load(tmp_path, GOOD + "parity: {control: {mode: one}}\n")
    assert matrix.parity is not None
    assert matrix.parity.of({"layers": "12", "mode": "two"}) == {"layers": "12", "mode": "one"}
