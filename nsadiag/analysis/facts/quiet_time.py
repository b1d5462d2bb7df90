"""Time that a rank has spent at one line: some causes differ from work by that alone."""

from __future__ import annotations

from nsadiag.analysis.records import CaptureEvidence, CellEvidence, RankEvidence

LEAST_S = 20.0
LONG_S = 60.0  # what the world has not answered by then, it rarely does
PAUSES = 10.0  # longest pauses of the job so far


def is_short(cell: CellEvidence) -> bool:
    """Whether the job had been silent for less than a minute at the last snapshot, as far as anybody watched it."""
    last = cell.watch.last_look
    return 0 < max((motion.silent_s for motion in last.motions), default=0.0) < LONG_S if last else False


def in_one_place_s(cell: CellEvidence, rank: RankEvidence) -> float:
    """Seconds of silence in which every look showed the same lines; 0 if that is no longer than a pause may be."""
    stands = [capture.main_lines for capture in in_silence(cell, rank)]
    looks = [m for look in cell.watch.looks if (m := look.of(rank.rank))]
    moved_on = any(stand != stands[-1] for stand in stands) or any(m.frames_changed for m in looks[-2:])
    if len(stands) < 2 or len(looks) < 2 or moved_on:
        return 0.0
    ended, moved = cell.watch.ending_s or cell.watch.ended_s, cell.watch.last_progress_s
    if ended is None or moved is None:
        return 0.0
    lasted = ended - moved
    limit = max(LEAST_S, PAUSES * (cell.watch.longest_quiet_s or 0.0))
    return lasted if lasted > limit else 0.0


def in_silence(cell: CellEvidence, rank: RankEvidence) -> list[CaptureEvidence]:
    """Its looks since anything last moved: what was seen before, in its imports maybe, says nothing of the silence."""
    before = _seen_before_silence(cell)
    return [c for c in rank.captures if c.stacks and c.number > before]


def _seen_before_silence(cell: CellEvidence) -> int:
    """Number of the last capture of a snapshot that was over when something last moved; 0 without one."""
    moved = cell.watch.last_progress_s
    return max(
        (
            look.second
            for look in cell.watch.looks
            if moved is not None and look.t_s + max((m.seconds for m in look.motions), default=0.0) < moved
        ),
        default=0,
    )


def python_answered(rank: RankEvidence) -> str | None:
    """The newest snapshot at which Python of the rank answered though one thread seemed to keep its interpreter lock."""
    looks = (c for c in reversed(rank.captures) if c.answers.of("python").answered)
    found = next(looks, None)
    return f"{found.source}/answers.json#sources.python" if found else None


def python_silent(rank: RankEvidence) -> str | None:
    """The snapshot at which it did not answer."""
    found = next((c for c in rank.captures if any(gap.capture == "python" for gap in c.gaps)), None)
    return f"{found.source}/gaps.json" if found else None
