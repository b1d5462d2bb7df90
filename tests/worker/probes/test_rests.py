"""What is recorded of steps, calls and failures that take no longer than a record of them would."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from support.processes.ranks import Ranks
from support.tables import table

from nsadiag.analysis.facts import pace
from nsadiag.evidence.layout import read_json_lines
from nsadiag.evidence.ring.blackbox import Kind, Phase
from nsadiag.evidence.ring.reader import Recording
from nsadiag.worker.probes import rests
from nsadiag.worker.probes.rests import LEFT_OUT
from nsadiag.worker.replacement import faithful

TRAINS = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
def step(number):
    optimizer.zero_grad()
    loss = model(torch.ones(1, 2)).sum()
    (loss * float("nan") if number == LOST else loss).backward()
    optimizer.step()
for number in range(STEPS): step(number)
"""
STEPS = 1500


def trained(
    ranks: Ranks, *, lost: int = -1, size: int = 1, probes: str = "light", then: str = ""
) -> Recording:
    source = TRAINS.replace("LOST", str(lost)).replace("STEPS", str(STEPS)) + then
    ranks.start(source, size=size, probes=probes)
    ranks.end()
    return ranks.recording()


def steps_of(recording: Recording, kind: Kind, phase: Phase = Phase.BEGIN) -> list[int]:
    events = recording.events
    return events["step"][(events["kind"] == kind) & (events["phase"] == phase)].tolist()


def test_most_short_steps_of_a_rank_alone_are_counted_and_no_more(ranks: Ranks) -> None:
    recording = trained(ranks)
    assert recording.header is not None
    assert next(iter(recording.header.counters.values())) == STEPS
    forward, backward, stepping = (
        steps_of(recording, k) for k in (Kind.FORWARD, Kind.BACKWARD, Kind.OPTIMIZER)
    )
    assert 20 < len(backward) < STEPS / 3
    # Of those that are recorded everything is, and they follow each other.
    assert forward == backward == stepping
    assert sum(step + 1 in set(backward) for step in backward) > len(backward) / 2
    assert set(steps_of(recording, Kind.GRADIENT, Phase.POINT)) <= set(backward)


@pytest.mark.parametrize(("size", "probes"), [(2, "light"), (1, "full"), (1, "light,invariants")])
def test_all_steps_are_recorded_where_a_peer_is_to_be_compared_with_or_it_was_asked_for(
    ranks: Ranks, size: int, probes: str
) -> None:
    backward = steps_of(trained(ranks, size=size, probes=probes), Kind.BACKWARD)
    # The ring may have lost the first ones.
    assert backward == list(range(STEPS - len(backward), STEPS))
    assert len(backward) > 500


def test_a_loss_that_is_not_finite_is_recorded_at_its_own_step(ranks: Ranks) -> None:
    events = trained(ranks, lost=1234).events
    lost = events["step"][(events["kind"] == Kind.BACKWARD) & (events["a"] == 1)].tolist()
    # It is carried into the parameters: and so is every loss after it.
    assert lost == [*range(1234, STEPS)]


SLOWS_DOWN = """
import time
for number in range(STEPS, STEPS + 20):
    time.sleep(0.03)
    step(number)
"""


def test_steps_that_are_no_longer_short_are_recorded_from_the_third_on(ranks: Ranks) -> None:
    recording = trained(ranks, then=SLOWS_DOWN.replace("STEPS", str(STEPS)))
    backward = steps_of(recording, Kind.BACKWARD)
    assert set(range(STEPS + 2, STEPS + 20)) <= set(backward)


def test_of_steps_that_were_counted_alone_the_mean_length_is_known_and_no_phase() -> None:
    end, begin, point = int(Phase.END), int(Phase.BEGIN), int(Phase.POINT)
    step, forward, backward = int(Kind.STEP), int(Kind.FORWARD), int(Kind.BACKWARD)
    rows = [
        (1.0, step, point, 10, 0, ""),
        (1.1, forward, begin, 0, 0, "net"),
        (1.2, forward, end, 32, 0, "net"),
        (1.3, backward, begin, 0, 0, ""),
        (1.5, step, point, 11, 400_000_000, ""),
        (3.5, step, point, 21, 2_400_000_000, LEFT_OUT),
    ]
    events = table(rows, ("t_s", "kind", "phase", "a", "b", "name"))
    whole, mean = pace.steps_of(0, events, ())
    assert (whole.step, round(whole.input_s or 0.0, 6), whole.elements) == (11, 0.1, 32)
    assert (mean.step, round(mean.step_s, 6), round(mean.cpu_s, 6)) == (21, 0.2, 0.2)
    assert (mean.input_s, mean.forward_s, mean.backward_s, mean.elements) == (None, None, None, None)


CALLS = """
model.eval()
print(sum(1 for _ in range(3000) if model(torch.ones(1, 2)) is not None), nn.Linear(2, 2)(torch.ones(1, 2)).shape[0])
for _ in range(3000): model(torch.ones(1, 2))
for _ in range(200):
    try: model(torch.ones(1, 3))
    except RuntimeError: pass
"""


def test_short_calls_of_a_rank_alone_are_passed_over_and_what_they_call_is_not_taken_for_a_model(
    ranks: Ranks,
) -> None:
    recording = trained(ranks, then=CALLS)
    named = Counter(e.name for e in _begun(recording, Kind.FORWARD))
    assert named["Sequential"] < 1500 + 3000
    # The layers are no outermost modules, also where the call of the whole model is passed over: one Linear alone is.
    assert named["Linear"] <= 1 and set(named) <= {"Sequential", "Linear"}
    assert read_json_lines(ranks.directory().raised)[0]["during"] == "forward"


def _begun(recording: Recording, kind: Kind) -> list[Any]:
    return [e for e in recording.decode(recording.events) if e.kind == kind and e.phase == Phase.BEGIN]


def test_a_path_is_masked_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    io = importlib.import_module("nsadiag.worker.probes.data.io")
    masked: list[str] = []
    monkeypatch.setattr(io, "_paths", {})
    monkeypatch.setattr(io, "mask_text", lambda text: masked.append(text) or text)
    for _ in range(3):
        assert io._path("torch.load", ("/nonexistent",), {}) == "/nonexistent"
    assert masked == ["/nonexistent"]


def test_what_stands_for_a_builtin_is_one_frame(capsys: pytest.CaptureFixture[str]) -> None:
    callers = []

    def around(*args: Any) -> None:
        callers.append(sys._getframe(1))

    faithful(around, print)("a line")
    assert callers == [sys._getframe()]


FAILS = """
import time
for path in ["/nonexistent"] * 500:
    try: torch.load(path)
    except OSError: pass
torch.save(torch.ones(1), "there.pt")
time.sleep(0.01)
torch.load("there.pt")
"""


@pytest.mark.parametrize(("size", "fewest", "most"), [(1, 2, 60), (2, 500, 500)])
def test_loads_that_fail_in_a_burst_are_passed_over_where_the_rank_has_no_peers(
    ranks: Ranks, size: int, fewest: int, most: int
) -> None:
    named = Counter(e.name for e in _begun(trained(ranks, size=size, then=FAILS), Kind.IO))
    assert fewest <= named["torch.load /nonexistent"] <= most
    # Nothing else is, nor what comes when the burst is over, and the failure is there with its frames.
    saved, loaded = (
        [count for name, count in named.items() if re.fullmatch(rf"torch\.{call} /.*/there\.pt", name)]
        for call in ("save", "load")
    )
    assert saved == loaded == [1]
    assert read_json_lines(ranks.directory().raised)[0]["during"] == "torch.load"


RESTS = """
import sys
from nsadiag.worker.probes import budget, rests
called, reviews, at = [], [], time.monotonic
budget.on_review.append(lambda _: reviews.append(at()))
for number in range(STEPS, 3 * STEPS): step(number)
while not rests.resting.now or rests.resting.left < 2: step(0)
def note(frame, event, _):
    if event == "call" and "/nsadiag/worker/" in frame.f_code.co_filename: called.append(frame.f_code.co_name)
sys.setprofile(note)
step(0)
sys.setprofile(None)
print(json.dumps([called, reviews]), file=open("noted.json", "w"))
"""


def test_a_step_that_rests_is_eight_frames_and_reviews_are_seconds_apart(ranks: Ranks) -> None:
    trained(ranks, then="import json, time" + RESTS.replace("STEPS", str(STEPS)))
    called, reviews = json.loads((ranks.jobs.directory / "noted.json").read_text())
    assert len(called) <= 8, called
    assert all(later - earlier >= 5 for earlier, later in pairwise(reviews))


def test_a_rest_is_long_enough_for_what_is_done_as_it_ends() -> None:
    found = rests.Lengths(step_s=1e-3, last_s=1e-3, event_s=1e-6, steps=10**6)
    assert rests.steps_between(found) == 50
    assert rests.steps_between(replace(found, steps=7)) == 7
    assert rests.steps_between(replace(found, step_s=5e-3)) == 0
