"""Everyone progresses, and one rank is ready for its peers far later than they are, step after step."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from nsadiag.analysis import places
from nsadiag.analysis.load import CellEvidence
from nsadiag.analysis.tables import Tables
from nsadiag.evidence.records import Evidence, Finding, Rejected, Where

MIN_STEPS = 5
SHARE_OF_STEP = 0.3  # of the step, that the peers lose by waiting
MIN_LAG_S = 0.02  # below this, scheduling noise on a shared machine looks the same
ALWAYS = 0.8  # share of the steps in which the same rank is the last
PARTS = {"input_s": "input", "forward_s": "forward", "backward_s": "backward"}


def _lags(steps: pd.DataFrame) -> pd.DataFrame:
    """Steps (rows) by rank: seconds after the first rank that was ready. Warm-up steps do not count.

    Durations on one rank would mislead: where a rank waits for the slow one (in backward, in `.item()`)
    differs by backend. Who is ready last does not.
    """
    ready = steps.pivot_table(index="step", columns="rank", values="ready_s").dropna()
    settled = ready[ready.index > min(3, ready.index.max() // 3)]
    lags: pd.DataFrame = settled.sub(settled.min(axis=1), axis=0)
    return lags


def straggler_rank(cell: CellEvidence, tables: Tables) -> Iterator[Finding]:
    steps = tables.steps
    if cell.world_size < 2 or steps["rank"].nunique() < cell.world_size or cell.stopped == "hang":
        return
    lags = _lags(steps)
    if len(lags) < MIN_STEPS:
        return
    medians = lags.median()
    slowest = int(str(medians.idxmax()))
    lag, last_share = float(medians[slowest]), float((lags.idxmax(axis=1) == slowest).mean())
    own = steps[steps["rank"] == slowest][["step_s", *PARTS]].median()
    if lag < max(MIN_LAG_S, SHARE_OF_STEP * own.step_s) or last_share < ALWAYS:
        return
    column = max(PARTS, key=lambda name: float(own[name]))
    rank = cell.rank(slowest)
    part, source = PARTS[column], f"{rank.source}/blackbox.bin"
    evidence = [
        Evidence(
            claim=f"rank {slowest} is the last to have its gradients in {last_share:.0%} of {len(lags)} steps, {lag * 1e3:.0f} ms after the first",
            source=source,
        ),
        Evidence(
            claim=f"of its step of {own.step_s * 1e3:.0f} ms it spends {own[column] * 1e3:.0f} ms in {part}",
            source=source,
        ),
    ]
    if rank.samples:
        evidence.append(
            Evidence(
                claim=f"the line is the one seen most often in {len(rank.samples)} samples of its stack",
                source=f"{rank.source}/samples.jsonl",
            )
        )
    yield Finding(
        detector="straggler_rank",
        cls="straggler_rank",
        outcome="slow",
        confidence=0.9,
        summary=f"Rank {slowest} is ready {lag * 1e3:.0f} ms after its peers in a step of {own.step_s * 1e3:.0f} ms, most of it in {part}; they wait for it.",
        guilty_ranks=(slowest,),
        blocked_ranks=tuple(int(r) for r in medians.index if r != slowest),
        where=Where(phase=part).at(places.most_seen(rank.samples) or places.of_black_box(rank)),
        evidence=tuple(evidence),
        rejected=(
            Rejected(
                cls="slow_compute",
                because=f"the other ranks are done with their own part {lag * 1e3:.0f} ms earlier",
            ),
        ),
        fix=f"Give rank {slowest} the same amount of {part} work as its peers, or a machine as fast as theirs.",
    )
