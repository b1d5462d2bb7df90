"""Records of each line's values on two ranks and in one process: the line at which they part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nsadiag.experiments.prove.cause import LEAVES_OUT, cause_of
from nsadiag.experiments.prove.compare import prove
from nsadiag.experiments.prove.record import Array, Run
from nsadiag.experiments.prove.statements import Statements

DRAWN = np.random.default_rng(1)
X, GRADIENT = DRAWN.normal(size=(8, 6)), DRAWN.normal(size=(6, 6))
Row = dict[str, Any]
SOURCE = """def forward(x, start):
    part = chosen(x, start)
    hidden = layer(part)
    return hidden
"""


def value(line: int, name: str, tensor: Array, *, graded: bool = False) -> tuple[Row, Array]:
    return {"what": "value", "place": f"model.py:{line}:forward", "name": name, "graded": graded}, tensor


def touched(line: int, name: str, tensor: Array) -> tuple[Row, Array]:
    return {
        "what": "touched",
        "place": f"train.py:{line}:<module>",
        "name": name,
        "notes": ["gradient"],
    }, tensor


def recorded(path: Path, ranks: list[tuple[dict[str, Array], list[tuple[Row, Array]]]]) -> Run:
    """Gradients that the optimizer finds, and what lines made, of each rank."""
    for number, (gradients, lines) in enumerate(ranks):
        folder = path / "ranks" / f"{number:05d}"
        folder.mkdir(parents=True)
        (folder / "meta.json").write_text(json.dumps({"rank": number, "world_size": len(ranks), "pid": 1}))
        rows: list[tuple[Row, Array]] = [({"what": "given"}, X)]
        rows += [({"what": "parameter", "name": name}, GRADIENT) for name in gradients]
        rows += [({"what": "gradient", "name": name}, each) for name, each in gradients.items()]
        rows += lines
        text, data = [], b""
        for order, (row, tensor) in enumerate(rows):
            shape = list(tensor.shape)
            stored = {"local": shape, "shape": shape, "dtype": "float32", "stored": "f8", "offset": len(data)}
            text.append(json.dumps({"step": 0, "number": order, **stored, **row}))
            data += np.ascontiguousarray(tensor, np.float64).tobytes()
        text.append(json.dumps({"what": "step", "step": 0, "rates": [0.1]}))
        (folder / "proof.jsonl").write_text("\n".join(text))
        (folder / "proof.bin").write_bytes(data)
    return Run(path)


def found(tmp_path: Path, ranks: Any, one: Any) -> tuple[str, str] | None:
    several, alone = recorded(tmp_path / "ranks", ranks), recorded(tmp_path / "one", [one])
    return cause_of(prove(several, alone), Statements(several, alone, 0))


def test_a_part_that_overlaps_is_where_it_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value with a gradient is wrong since what it was made of is no cut of one process's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(SOURCE)
    parts, twice = [X[:4], X[3:7]], {"w": 2 * GRADIENT}
    ranks = [(twice, [value(2, "part", p), value(3, "hidden", 3 * p, graded=True)]) for p in parts]
    told = found(tmp_path, ranks, ({"w": GRADIENT}, [value(2, "part", X), value(3, "hidden", 3 * X, graded=True)]))  # fmt: skip
    assert told is not None and told[0] == "model.py:2:forward"


def test_a_cut_is_no_mistake(tmp_path: Path) -> None:
    ranks = [({"w": 2 * GRADIENT}, [value(3, "hidden", p, graded=True)]) for p in (X[:4], X[4:])]
    assert found(tmp_path, ranks, ({"w": GRADIENT}, [value(3, "hidden", X, graded=True)])) is None


def test_what_is_left_out_is_told_by_the_line_that_changes_the_rest(tmp_path: Path) -> None:
    noise = DRAWN.normal(size=(6, 6))
    ranks = []
    for own in (GRADIENT + noise, GRADIENT - noise):
        lines = [touched(5, "a", own), touched(5, "b", own), touched(7, "a", GRADIENT)]
        ranks.append(({"a": GRADIENT, "b": own}, lines))
    told = found(tmp_path, ranks, ({"a": GRADIENT, "b": GRADIENT}, []))
    assert told == ("train.py:7:<module>", f"{LEAVES_OUT} b")


def test_a_gradient_is_wrong_from_the_line_on_that_clips_each_ranks_own(tmp_path: Path) -> None:
    noise = DRAWN.normal(size=(6, 6))
    own = [GRADIENT + noise, GRADIENT - noise]
    clipped = [each / np.linalg.norm(each) ** 2 for each in own]
    mean = (clipped[0] + clipped[1]) / 2
    ranks = [
        ({"w": mean}, [touched(5, "w", a), touched(6, "w", b), touched(7, "w", mean)])
        for a, b in zip(own, clipped, strict=True)
    ]
    told = found(
        tmp_path, ranks, ({"w": GRADIENT}, [touched(5, "w", 2 * GRADIENT), touched(6, "w", GRADIENT)])
    )
    assert told is not None and told[0] == "train.py:6:<module>"


def setting(line: int, kind: str, name: str, given: float) -> tuple[Row, Array]:
    row, tensor = touched(line, name, np.zeros(1))
    return {**row, "notes": [kind], "value": given}, tensor


def test_a_parameter_that_some_ranks_do_not_train_is_told_by_the_line_that_set_it(tmp_path: Path) -> None:
    ranks = [({"w": 2 * GRADIENT}, [setting(4, "trained", "w", given)]) for given in (1.0, 0.0)]
    told = found(tmp_path, ranks, ({"w": GRADIENT}, [setting(4, "trained", "w", 1.0)]))
    assert told is not None and told[0] == "train.py:4:<module>"


def test_settings_that_are_one_process_s_are_no_cause(tmp_path: Path) -> None:
    ranks = [({"w": 2 * GRADIENT}, [setting(4, "trained", "w", 1.0)])] * 2
    assert found(tmp_path, ranks, ({"w": GRADIENT}, [setting(4, "trained", "w", 1.0)])) is None


def in_backward(line: int, name: str, tensor: Array, local: str = "") -> tuple[Row, Array]:
    row, _ = value(line, name, tensor)
    about = {"notes": ["backward"], "place": f"model.py:{line}:backward", "local_name": local}
    return {**row, **about}, tensor


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_a_backward_that_loses_a_factor_is_told_by_its_line(tmp_path: Path, scale: float) -> None:
    """Parts of a sum come in, and what goes out is a share of the sum."""
    (tmp_path / "model.py").write_text("\n".join(["pass"] * 6))
    noise = DRAWN.normal(size=(8, 6))
    ranks = []
    for own in (X / 2 + noise, X / 2 - noise):
        lines = [in_backward(3, "backward(g)", own, "g"), in_backward(4, "g", scale * X), in_backward(5, "return", scale * X)]  # fmt: skip
        ranks.append(({"w": scale * GRADIENT, "v": GRADIENT + noise[:6]}, lines))
    alone = [in_backward(3, "backward(g)", X, "g"), in_backward(4, "g", X), in_backward(5, "return", X)]
    told = found(tmp_path, ranks, ({"w": GRADIENT, "v": GRADIENT}, alone))
    assert (told[0] if told else None) == ("model.py:4:backward" if scale == 0.5 else None)


def test_pieces_put_together_without_their_gradient_are_told_where_they_are(tmp_path: Path) -> None:
    """In forward all is right; behind the gathering line a part of the sum of its gradients comes back."""
    noise, pulled = DRAWN.normal(size=(8, 6)), DRAWN.normal(size=(8, 6))
    ranks = []
    for rank, sign in enumerate((1, -1)):
        own = slice(4 * rank, 4 * rank + 4)
        gathered = pulled / 2 + sign * noise
        lines = [value(2, "piece", X[own], graded=True), value(3, "every", X, graded=True)]
        lines += [
            ({"what": "pulled", "number": 4}, gathered),
            ({"what": "pulled", "number": 3}, gathered[own]),
        ]
        ranks.append(({"w": 2 * GRADIENT}, lines))
    one = [value(2, "piece", X, graded=True), value(3, "every", X, graded=True)]
    one += [({"what": "pulled", "number": 4}, pulled), ({"what": "pulled", "number": 3}, pulled)]
    told = found(tmp_path, ranks, ({"w": GRADIENT}, one))
    assert told is not None and told[0] == "model.py:3:forward"
