"""Everyone progresses, and one rank takes far longer for its own share of each step."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where

MIN_STEPS = 5
RATIO = 1.5  # own work against the peers' median
SHARE_OF_STEP = 0.3  # of the step that the peers lose
MIN_LOST_S = 0.02  # below this, scheduling noise on a shared machine looks the same
PARTS = {"input_s": "input", "forward_s": "forward", "backward_s": "backward"}


def _medians(steps: pd.DataFrame) -> pd.DataFrame:
    """Per rank; the first steps warm up and do not count."""
    settled = steps[steps.step > min(3, steps.step.max() // 3)]
    medians: pd.DataFrame = settled.groupby("rank")[["step_s", "work_s", *PARTS]].median()
    return medians


def straggler_rank(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    steps = tables.steps
    if cell.world_size < 2 or len(cell.ranks) < 2 or steps.groupby("rank").size().min() < MIN_STEPS:
        return
    medians = _medians(steps)
    slowest = int(str(medians.work_s.idxmax()))
    own, peers = medians.loc[slowest], medians.drop(slowest).median()
    lost = own.work_s - peers.work_s
    if lost < max(MIN_LOST_S, SHARE_OF_STEP * own.step_s) or own.work_s < RATIO * peers.work_s:
        return
    column = max(PARTS, key=lambda c: own[c] - peers[c])
    rank = cell.rank(slowest)
    here = places.most_seen(rank.samples) or places.of_black_box(rank)
    ratio = own.work_s / max(peers.work_s, 1e-6)
    yield Finding(
        detector="straggler_rank",
        cls="straggler_rank",
        outcome="slow",
        confidence=0.9,
        summary=f"Rank {slowest} needs {own.work_s * 1e3:.0f} ms a step for its own work, {ratio:.1f} times its peers' {peers.work_s * 1e3:.0f} ms, mostly in {PARTS[column]}; they wait for it.",
        guilty_ranks=(slowest,),
        blocked_ranks=tuple(int(r) for r in medians.index if r != slowest),
        where=Where(phase=PARTS[column]).at(here),
        evidence=(
            Evidence(
                claim=f"median {PARTS[column]} time: rank {slowest} {own[column] * 1e3:.0f} ms, peers {peers[column] * 1e3:.0f} ms",
                source=f"{rank.source}/blackbox.bin",
            ),
            *(
                ()
                if not rank.samples
                else (
                    Evidence(
                        claim=f"the line is the one seen most often in {len(rank.samples)} samples of its stack",
                        source=f"{rank.source}/samples.jsonl",
                    ),
                )
            ),
        ),
        rejected=(
            Rejected(
                cls="slow_compute",
                because=f"the peers' own work takes {peers.work_s * 1e3:.0f} ms of a step of {own.step_s * 1e3:.0f} ms",
            ),
        ),
        fix=f"Give rank {slowest} the same amount of {PARTS[column]} work as its peers, or a machine as fast as theirs.",
    )
