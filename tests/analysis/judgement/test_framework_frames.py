"""What a training framework says in the place of torch, judged from recorded evidence."""

import json
from pathlib import Path

from support.recordings.golden import archive_of, unpack

from nsadiag.analysis.verdict import judge_directory

LIGHTNING = (
    "It looks like your LightningModule has parameters that were not used in producing the loss returned by "
    "training_step. If this is intentional, you must enable the detection of unused parameters in DDP."
)


def test_unused_parameters_are_named_where_a_framework_has_put_its_words_in_the_place_of_ddps(
    tmp_path: Path,
) -> None:
    run = unpack(archive_of("ddp_unused_parameter_branch"), tmp_path / "run")
    theirs = judge_directory(run.path)
    assert theirs.where.parameter is not None
    ddp = json.loads((run.rank(0).path / "ddp.json").read_text())
    unused = next(
        p
        for model in ddp
        for p in model["parameters"]
        if theirs.where.parameter in (p["name"], p.get("qualified"))
    )
    row = {
        "step": 1, "t_mono_ns": 1, "optimizer": 0, "of": 6, "count": 1,
        "missing": [unused.get("qualified", unused["name"])],
    }  # fmt: skip
    for rank in run.ranks():
        exception = json.loads(rank.exception.read_text())
        rank.exception.write_text(json.dumps({**exception, "message": LIGHTNING}))
        rank.ungraded.write_text(json.dumps(row) + "\n")
    verdict = judge_directory(run.path)
    assert (verdict.cls, verdict.guilty_ranks) == ("ddp_unused_parameter", theirs.guilty_ranks)
    assert verdict.where.parameter == row["missing"][0]
