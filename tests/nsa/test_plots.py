"""Plots of a run's telemetry."""

import xml.etree.ElementTree as ET

import pytest

from nsa.options import load_train_config
from nsa.plots import main, svg
from nsa.train import train

LINE = "{http://www.w3.org/2000/svg}polyline"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    overrides = ["train.steps=5", "train.eval_every=2", f"telemetry.dir={directory}", "telemetry.every=2"]
    train(load_train_config("tiny", overrides))
    with (directory / "heartbeat_rank0.jsonl").open("a") as file:
        file.write('{"event": "st')  # as of a run that was killed
    return directory


def lines(path):
    return {line[0].text: line.get("points").split() for line in ET.parse(path).getroot().iter(LINE)}


def test_losses_gates_and_selections_of_every_layer_are_drawn(run, capsys):
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.split() == [str(run / f"{n}.svg") for n in ("loss", "gates", "selection")]
    assert len(lines(run / "loss.svg")["loss"]) == 5
    assert len(lines(run / "loss.svg")["eval_loss"]) == 2
    gates = list(ET.parse(run / "gates.svg").getroot().iter(LINE))
    assert len(gates) == 6 * 2 and all(len(line.get("points").split()) == 3 for line in gates)
    assert set(lines(run / "selection.svg")) == {"layer 0", "layer 1"}


def test_each_line_is_named_in_its_colour():
    drawn = ET.fromstring(svg({"loss": {"nsa": [(0, 1), (1, 2)], "dense": [(0, 2), (1, 1)]}}))
    names = {each.text: each.get("fill") for each in drawn.iter(LINE.replace("polyline", "text"))}
    assert all(names[line[0].text] == line.get("stroke") for line in drawn.iter(LINE))


def test_nothing_to_draw_is_an_error_and_a_hint(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "hint: train with --telemetry.dir" in capsys.readouterr().err
    assert main([]) == 2
