"""Jobs that train something wrong without failing are held against a control, and right ones are left alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.jobs import Jobs

JOB = Path(__file__).parents[1] / "support" / "parity_job.py"
MODES = {
    "single": 1,
    "ddp": 2,
    "by_hand": 2,
    "fsdp1": 2,
    "fsdp1_flat": 2,
    "fsdp1_whole": 2,
    "fsdp2": 2,
    "tp": 2,
}
WRAPPERS = [mode for mode in MODES if mode not in ("single", "tp")]
# By what the job does besides (its control does it, too): case to mode and fault.
CASES = {
    "plain": {
        "late": ("single", "late"),
        "late_function": ("single", "late_function"),
        "late_fsdp2": ("fsdp2", "late"),
        "detached": ("single", "detached"),
        "zeroed": ("single", "zeroed"),
        "other_rate": ("single", "other_rate"),
        "not_averaged": ("by_hand", "not_averaged"),
        "summed": ("by_hand", "summed"),
        "rank_scale": ("ddp", "rank_scale"),
        "other_start": ("single", "other_start"),
        "other_data": ("ddp", "other_data"),
        "tp": ("tp", "none"),
        "accumulate": ("single", "accumulate"),
        "scaler": ("single", "scaler"),
        "compiled": ("ddp", "compiled"),
    },
    "clip": {
        **{mode: (mode, "checkpoint") for mode in WRAPPERS},
        "by_shard": ("fsdp2", "clip_by_shard"),
    },
    "dropout": {
        "checkpoint": ("single", "checkpoint"),
        "redrawn": ("single", "redrawn"),
        "spread": ("ddp", "none"),
    },
}
Told = dict[str, dict[str, Any]]


def spec() -> str:
    every = {"control": ("single", "none")}
    for cases in CASES.values():
        every |= cases
    values = "".join(
        f"      {label}: {{args: {mode} {fault}, world_size: {MODES[mode]}}}\n"
        for label, (mode, fault) in every.items()
    )
    return (
        f"name: parity\ncommand: {JOB}\nprobes: light\ntimeout_s: 60\naxes:\n  case:\n    values:\n{values}"
        "  base: {values: [plain, clip, dropout], args: '{value}'}\nparity: {control: {case: control}}\n"
    )


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """Every case's verdict and row of parity, by `base case`; one matrix, since a launcher takes its time to start."""
    jobs = Jobs(tmp_path_factory.mktemp("parity"))
    (jobs.directory / "spec.yaml").write_text(spec())
    chosen = " or ".join(
        f"base={base} and (case=control or {' or '.join(f'case={case}' for case in cases)})"
        for base, cases in CASES.items()
    )
    try:
        done = jobs.finish(jobs.start("matrix", "spec.yaml", "--out", "matrix", "-k", chosen), seconds=400)
        document = json.loads((jobs.directory / "matrix" / "matrix.json").read_text())
        assert done.returncode == 1, done.stderr
        rows = {row["cell"]: row for row in document["parity"]}
        yield {
            f"{cell['factors']['base']} {cell['factors']['case']}": {
                **cell["verdict"],
                "row": rows.get(cell["id"]),
            }
            for cell in document["cells"]
        }
    finally:
        jobs.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "what", "says"),
    [
        ("late", "gradient", "All of embed, side, layers.0-1; layers.2"),
        ("late_function", "gradient", "mixers.0, mixers.1; none of head"),
        ("detached", "missing", "No gradient reaches side."),
        ("zeroed", "missing", "No gradient reaches layers.1.up.weight at step 1"),
        ("other_rate", "update", "The optimizer's step 0 changed"),
        ("not_averaged", "gradient", "they are not averaged over ranks"),
        ("summed", "gradient", "All parameters have 2 times the control's gradient"),
        ("rank_scale", "loss", "which computes the same on the same data"),
    ],
)
def test_what_trains_something_else_without_failing_is_silently_wrong(
    cells: Told, case: str, what: str, says: str
) -> None:
    cell = cells[f"plain {case}"]
    assert (cell["class"], cell["outcome"]) == ("silently_wrong", "wrong")
    assert (cell["row"]["judgement"], cell["row"]["what"]) == ("differs", what)
    assert says in cell["row"]["says"] and any(c["source"].endswith("parity.jsonl") for c in cell["evidence"])
    if not case.startswith("late"):
        assert cell["summary"] == cell["row"]["says"] and cell["where"]["parameter"] and cell["fix"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "line", "told"),
    [
        ("late", "x = checkpoint(lambda y: layer(y), x", "ran layers.2 in forward and layers.3 instead"),
        (
            "late_function",
            "x = checkpoint(late if",
            "with mixer = mixers.1 in forward and with mixer = mixers.2",
        ),
    ],
)
def test_a_late_bound_checkpoint_keeps_the_line_that_its_recomputation_tells(
    cells: Told, case: str, line: str, told: str
) -> None:
    """Whether it is a module that is bound late, or a parameter that a function uses."""
    late = cells[f"plain {case}"]
    assert late["where"]["code"].startswith(line) and told in late["summary"]
    assert any("is off by" in claim["claim"] for claim in late["evidence"])


@pytest.mark.slow
def test_what_fsdp2_leaves_whole_after_backward_is_compared_by_its_shards(cells: Told) -> None:
    late = cells["plain late_fsdp2"]
    assert (late["row"]["judgement"], late["class"]) == ("differs", "silently_wrong")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("plain other_start", "do not start from the same parameters"),
        ("plain other_data", "different data"),
        ("dropout spread", "draws random numbers"),
    ],
)
def test_what_was_not_given_the_same_is_refused_and_neither_accused_nor_healthy(
    cells: Told, cell: str, why: str
) -> None:
    assert cells[cell]["outcome"] == "unknown"
    assert cells[cell]["row"]["judgement"] == "not_comparable" and why in cells[cell]["row"]["why"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *(f"clip {mode}" for mode in WRAPPERS),
        "plain tp",
        "plain accumulate",
        "plain scaler",
        "plain compiled",
    ],
)
def test_what_computes_the_same_in_another_way_is_left_alone(cells: Told, name: str) -> None:
    cell = cells[name]
    assert cell["outcome"] == "healthy", cell["summary"]
    row = cell["row"]
    assert (row["judgement"], row["steps"], row["parameters"], row["differing"]) == ("same", 3, 32, 0), row


@pytest.mark.slow
def test_clipping_by_the_norm_of_a_shard_is_seen(cells: Told) -> None:
    assert cells["clip by_shard"]["class"] == "silently_wrong"


@pytest.mark.slow
def test_dropout_is_compared_where_the_same_numbers_are_drawn(cells: Told) -> None:
    assert cells["dropout checkpoint"]["row"]["judgement"] == "same"
    redrawn = cells["dropout redrawn"]
    assert redrawn["class"] == "silently_wrong" and redrawn["row"]["loss"]["difference"] == 0
    assert "preserve_rng_state" in redrawn["fix"]


@pytest.mark.slow
def test_a_control_is_no_cell_to_be_compared(cells: Told) -> None:
    for base in CASES:
        assert cells[f"{base} control"]["row"] is None and cells[f"{base} control"]["outcome"] == "healthy"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_trainer_computes_the_same_however_it_is_spread_and_checkpointed(jobs: Jobs) -> None:
    done = jobs.finish(jobs.start("matrix", "nsa-parity", "--out", "matrix"), seconds=1100)
    rows = json.loads((jobs.directory / "matrix" / "matrix.json").read_text())["parity"]
    assert done.returncode == 0, done.stderr
    assert len(rows) == 45 and {(row["judgement"], row["steps"]) for row in rows} == {("same", 3)}
