"""Outliers: of ranks that should behave alike, the ones that do not, and the criterion that singles them out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from nsadiag.evidence.phrases import are

S = TypeVar("S", bound=Iterable[int])


class Criterion(str, Enum):
    """The reason for these ranks and not the others: the rest of a sentence that begins with them."""

    MAJORITY = "in the minority"
    MOST_AT_ODDS = "at odds with the most peers"
    NOVEL = "in a call not made before, while the peers repeat earlier ones"
    NOVEL_ARGUMENTS = "passing arguments not passed before at that line, while the peers repeat earlier ones"
    NOVEL_PLACE = "at a line not reached before, while the peers repeat earlier calls"
    NOVEL_TRANSITION = "in a sequence of calls not made before, while the peers repeat earlier ones"
    SHORTER = "without the calls that the peers made next"
    UNLIKE_FIRST = "unlike the first rank"
    ALIKE = "in the same operation at the same line, and no rank is in the matching one"
    UNUSUAL_COUNT = "sending or receiving more or fewer messages in this step than in earlier ones"
    LEFT_OUT = "without this round's message, which every earlier round had"
    GONE_ON = "in no send or receive, and two or more ranks wait for its messages"
    ELSEWHERE = "at another line than the others"
    UNMATCHED = "the only one whose message has no counterpart"
    ABSENT_PEER = "waiting for a peer that is in no send or receive"
    RARE_TAG = "using another tag than most ranks at that line"
    OWN_LINE = "at a line from which no other rank ever sent or received"
    SETTING_UP = "setting up a model, as ranks do at the start, while the peers are at work"
    UNDECIDED = ""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class Outliers:
    """Ranks that behaved unlike the rest; all of them where no criterion decides."""

    ranks: tuple[int, ...]
    criterion: Criterion

    @property
    def decided(self) -> bool:
        return self.criterion != Criterion.UNDECIDED

    def said_of(self, who: str) -> str:
        """The reason in a sentence; `who` names the ranks."""
        if not self.decided:
            return f"nothing shows which of {who} is at fault"
        return f"{who} {are(self.ranks)} {self.criterion}"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """A rank's behaviour, beside others that should do the same."""

    now: Any  # equal where ranks agree
    is_novel: bool = False  # by what was done before
    weight: float = 1.0  # for how many ranks it stands


# Names the ranks that it singles out, and none where it does not tell.
CriterionTest = tuple[Criterion, Callable[[S], Collection[int]]]


def outliers(behaviour: S, criteria: Sequence[CriterionTest[S]]) -> Outliers:
    """The ranks that the first criterion singles out; `behaviour` goes over all ranks."""
    for criterion, singled_out in criteria:
        if odd := singled_out(behaviour):
            return Outliers(ranks=tuple(sorted(odd)), criterion=criterion)
    return Outliers(ranks=tuple(sorted(behaviour)), criterion=Criterion.UNDECIDED)


def which(ranks: Iterable[int], test: Callable[[int], bool]) -> tuple[int, ...]:
    """Ranks that pass a test which others fail."""
    everyone = tuple(sorted(ranks))
    found = tuple(rank for rank in everyone if test(rank))
    return found if len(found) < len(everyone) else ()


def minority(keys: Mapping[int, Hashable], weight: Callable[[int], float] = lambda _: 1.0) -> tuple[int, ...]:
    """Ranks other than most; empty where no value is that of more ranks than any other. `weight`: for how many it stands."""
    counts: dict[Hashable, float] = {}
    for rank, key in keys.items():
        counts[key] = counts.get(key, 0.0) + weight(rank)
    most = [key for key, count in counts.items() if count == max(counts.values())]
    return which(keys, lambda rank: keys[rank] != most[0]) if len(most) == 1 else ()


def outlier_ranks(keys: Mapping[int, Hashable], weight: Callable[[int], float]) -> tuple[int, ...]:
    """Ranks whose value is another than that of most; all of them where no value is that of most."""
    return minority(keys, weight) or tuple(sorted(keys))


def unlike_most(keys: Mapping[int, Hashable], weight: Callable[[int], float] = lambda _: 1.0) -> Outliers:
    """Ranks whose value is another than that of most; else than that of the first rank, with which wrappers and stores compare."""
    behaviour = {rank: Behaviour(now=key, weight=weight(rank)) for rank, key in keys.items()}
    return outliers(behaviour, (MAJORITY, UNLIKE_FIRST))


def _minority(behaviour: Mapping[int, Behaviour]) -> tuple[int, ...]:
    return minority({rank: b.now for rank, b in behaviour.items()}, lambda rank: behaviour[rank].weight)


def _novel(behaviour: Mapping[int, Behaviour]) -> tuple[int, ...]:
    return which(behaviour, lambda rank: behaviour[rank].is_novel)


def _shorter(behaviour: Mapping[int, Behaviour]) -> tuple[int, ...]:
    shortest = min(len(b.now) for b in behaviour.values())
    return which(behaviour, lambda rank: len(behaviour[rank].now) == shortest)


def _unlike_first(behaviour: Mapping[int, Behaviour]) -> tuple[int, ...]:
    first = behaviour[min(behaviour)].now
    return which(behaviour, lambda rank: bool(behaviour[rank].now != first))


MAJORITY: CriterionTest[Mapping[int, Behaviour]] = (Criterion.MAJORITY, _minority)
NOVEL: CriterionTest[Mapping[int, Behaviour]] = (Criterion.NOVEL, _novel)
SHORTER: CriterionTest[Mapping[int, Behaviour]] = (Criterion.SHORTER, _shorter)
UNLIKE_FIRST: CriterionTest[Mapping[int, Behaviour]] = (Criterion.UNLIKE_FIRST, _unlike_first)
