"""The words, letters and units that every format shares."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from nsadiag.evidence.phrases import all_of, count
from nsadiag.evidence.spans import spans


@dataclass(frozen=True, kw_only=True)
class Mark:
    """The mark of an outcome: a letter and a word, so that colour is never the only signal."""

    letter: str
    word: str
    style: str


MARKS = {
    "hung": Mark(letter="H", word="hung", style="red"),
    "crashed": Mark(letter="C", word="crashed", style="bright_red"),
    "slow": Mark(letter="S", word="slow", style="yellow"),
    "wrong": Mark(letter="W", word="wrong", style="magenta"),
    "incomplete": Mark(letter="I", word="incomplete", style="cyan"),
    "unknown": Mark(letter="?", word="unknown", style="cyan"),
    "healthy": Mark(letter="✓", word="healthy", style="green"),
    "running": Mark(letter="R", word="running", style="blue"),
    "pending": Mark(letter="·", word="pending", style="default"),
    "skipped": Mark(letter="-", word="skipped", style="default"),
}

STATUS_MARKS = {
    "confirmed": Mark(letter="✓", word="confirmed", style="bold green"),
    "refuted": Mark(letter="✗", word="refuted", style="blue"),
    "depends": Mark(letter="±", word="depends", style="bold magenta"),
    "not settled": Mark(letter="~", word="not settled", style="bold yellow"),
    "not tested": Mark(letter="-", word="not tested", style="dim"),
}

NOT_KNOWN = "-"


def mark_of(name: str) -> Mark:
    """The mark, or for an outcome of a newer schema one that spells it out."""
    return MARKS.get(name) or Mark(letter="?", word=name, style="cyan")


def status_mark(status: str) -> Mark:
    """The mark of a claim's status."""
    return STATUS_MARKS.get(status) or Mark(letter="?", word=status, style="cyan")


def moment(iso: str) -> str:
    """`2026-03-01 03:04:05 UTC` from ISO's `2026-03-01T03:04:05.123456+00:00`; anything else as it is."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?", iso)
    if not match:
        return iso
    zone = (match[3] or "").replace("Z", "UTC").replace("+00:00", "UTC")
    return f"{match[1]} {match[2]} {zone}".rstrip()


def duration(seconds: float | None) -> str:
    """`840 µs`, `12.3 ms`, `4.20 s`, `2 min 13 s`, `1 h 04 min`."""
    if seconds is None:
        return NOT_KNOWN
    if seconds >= 3599.5:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min"
    if seconds >= 99.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s" if rest else f"{minutes} min"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= 0.9995 * size:
            return f"{_three_digits(seconds / size)} {unit}"
    return "0 s" if seconds <= 0 else f"{seconds * 1e6:.0f} µs"


def roughly(seconds: float) -> str:
    """Whole seconds, for what changes while one looks at it."""
    return f"{seconds:.0f} s" if seconds < 99.5 else duration(seconds)


def mebibytes(mib: float | None) -> str:
    if mib is None:
        return NOT_KNOWN
    return f"{_three_digits(mib / 1024)} GiB" if mib >= 1000 else f"{mib:.0f} MiB"


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


# The levels of nsadiag.evidence.records.Strength, for a reader.
SURE = (
    (0.95, "the failure itself is on record"),
    (0.85, "records of all ranks concerned agree; one step of the explanation is inferred"),
    (0.75, "the state is certain; another reason for it cannot be excluded"),
    (0.6, "one kind of evidence alone"),
    (0.5, "several readings fit equally well"),
)


def sureness(confidence: float) -> str:
    """The meaning of a percentage: the level that claims no more; empty where no claim is made."""
    meaning = next((words for least, words in SURE if confidence >= least), "")
    return f"{percent(confidence)} sure: {meaning}" if meaning else ""


def relative(difference: float | None) -> str:
    """A difference relative to the whole: `1.2e-08`."""
    return NOT_KNOWN if difference is None else f"{difference:.2g}"


def rank_list(ranks: Sequence[int], world_size: int) -> str:
    """`rank 1`, `both ranks`, `ranks 0-3, 7 (5 of 8)`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} of {world_size}" if world_size > max(1, ranks[0]) else f"rank {ranks[0]}"
    if [*ranks] == [*range(world_size)]:
        return all_of(world_size)
    # Some may never have been started, as more were expected than the launcher has.
    of = f" ({len(ranks)} of {world_size})" if max(ranks, default=0) < world_size else ""
    return f"ranks {spans(ranks)}{of}"


def in_order(names: Iterable[str]) -> list[str]:
    """Outcomes with the failures first, as MARKS lists them; those we do not know before all."""
    order = {name: place for place, name in enumerate(MARKS)}
    return sorted(names, key=lambda name: order.get(name, -1))


def tally(counts: dict[str, int]) -> str:
    """`2 hung, 1 crashed, 33 healthy`."""
    return ", ".join(f"{counts[name]} {mark_of(name).word}" for name in in_order(counts))


def spent(wall_s: float | None, ranks_s: float) -> str:
    """` in 6 min 45 s, 9 min 10 s of rank time`; empty where nothing is known."""
    took = "" if wall_s is None else f" in {duration(wall_s)}"
    return took + (f", {duration(ranks_s)} of rank time" if ranks_s else "")


def answers(counts: Mapping[str, int]) -> str:
    """`12 claims: 3 confirmed, 8 refuted, 1 not tested`."""
    told = ", ".join(f"{number} {status}" for status, number in counts.items())
    return f"{count(sum(counts.values()), 'claim')}: {told}" if counts else ""


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def value_text(value: object) -> str:
    """A value of any kind, in a comparison."""
    if value is None:
        return NOT_KNOWN
    return f"{value:.9g}" if isinstance(value, float) else str(value)
