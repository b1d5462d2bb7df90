"""Sums of the parameters, taken ever more rarely: a drift is seen before the job is half as long again."""

from __future__ import annotations

import itertools

from nsadiag.worker.probes.looks import is_look


def test_sums_are_taken_ever_more_rarely_and_never_closer_than_they_were() -> None:
    looks = [n for n in range(1, 2049) if is_look(n)]
    assert looks[:10] == [1, 2, 4, 8, 16, 24, 32, 48, 64, 96]
    apart = [after - before for before, after in itertools.pairwise(looks)]
    assert apart == sorted(apart)
    assert all(gap <= before / 4 for before, gap in zip(looks, apart, strict=False) if before >= 256)
