"""Findings and verdicts: the values that rules lead to and reports render."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from nsadiag.evidence.documents.values import Rank, Whole, value_of
from nsadiag.evidence.layout import SCHEMA_VERSION

# Of a hang: "proven" where only ranks that wait themselves could wake the waiting ones, "suspected" where some rank could
# still continue by itself.
Certainty = Literal["proven", "suspected"]
# "incomplete": cut off before it had failed, or had shown that it makes steps at a rate of its own.
Outcome = Literal["hung", "crashed", "slow", "wrong", "incomplete", "healthy", "unknown"]


# What to do about a failure: change the code or its settings, or what it runs on (a container, a port, an interface, a
# limit); start the job again as it is, start it without a host, leave it alone for now, or end it and look into it.
# "unknown": the evidence supports none of these.
Act = Literal["fix code", "fix environment", "retry", "exclude host", "wait", "stop", "unknown"]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The operation that ranks have to agree on."""

    op: str
    group: str
    seq: Whole | None = None
    sizes: list[list[Whole]] | None = None
    dtypes: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of user code; of a library's, where the stack has none of the user's."""

    file: str
    line: int
    function: str | None = None
    code: str | None = None
    library: bool = False

    def is_at(self, other: Place) -> bool:
        """Whether it is the same line."""
        return (self.file, self.line) == (other.file, other.line)


@dataclass(frozen=True, kw_only=True)
class Where:
    """The place that explains the failure, as far as it is known."""

    file: str | None = None
    line: int | None = None
    function: str | None = None
    code: str | None = None
    library: bool = False  # no line of the user's was there: the innermost of an installed package
    collective: Collective | None = None
    parameter: str | None = None
    module: str | None = None
    bucket: int | None = None
    step: int | None = None
    phase: str | None = None
    host: str | None = None  # where the job runs on several

    def at(self, place: Place | None) -> Where:
        """The same, with the line filled in from `place`."""
        return dataclasses.replace(self, **vars(place)) if place else self


# Whatever makes ranks differ without another line of the user's before it.
Origin = Literal[
    "rank", "data", "file system", "time", "random state", "exception", "environment", "unknown"
]  # fmt: skip
# Of a link: ranks wrote down that they differed there, or the source says that they may have.
How = Literal["recorded", "inferred"]


@dataclass(frozen=True, kw_only=True)
class ValueOfRanks:
    """A name that a line reads or writes, with what it was on each rank that recorded it."""

    name: str
    by_rank: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Link:
    """One step of a chain of causes: a line at which ranks did not do the same."""

    at: Place
    because: str  # what differed there, one sentence
    how: How
    ranks: tuple[Rank, ...] = ()  # that differ from the others
    values: tuple[ValueOfRanks, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Because:
    """The cause of a divergence: the line that made ranks differ, and how they came to differ there.

    `chain` begins at the line at which they diverged, leads to that line, and goes back in time; the last link is the origin, as far as it
    is known.
    """

    file: str
    line: int
    function: str | None
    code: str | None
    how: How
    origin: Origin
    chain: tuple[Link, ...]

    @property
    def words(self) -> str:
        """The sentence of the link at its line."""
        own = (link.because for link in self.chain if (link.at.file, link.at.line) == (self.file, self.line))
        return next(own, self.code or "")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One claim and the file, in the run directory, that anyone can open to check it."""

    claim: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A neighbouring class that is ruled out, and the fact that speaks against it."""

    cls: str = field(metadata={"key": "class"})
    because: str
    source: str | None = None  # of the fact, in the run directory


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One reading that fits evidence which does not decide, and what would decide it."""

    cls: str = field(metadata={"key": "class"})
    because: str  # what of the evidence fits it
    collect: str  # the one thing to collect next
    command: str  # that collects it, to be pasted where the job was started


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of the job and its speed."""

    steps_done: int | None = None  # null where no rank left a recorder
    unit: str = "step"  # of an optimizer; "iteration" of a loop in which none was seen to step
    rate_per_s: float | None = None
    eta_s: float | None = None
    predicted_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PeerWait:
    """The time that one rank has kept its peers waiting: seconds in which at least one of them waited for it."""

    rank: Rank
    total_s: float
    now_s: float  # at the end of what was observed; 0 where nobody waits for it then
    longest_s: float  # that was over
    times: int
    waiters: tuple[Rank, ...] = ()  # now
    what: str | None = None  # they wait in, now
    at: Place | None = None  # where it is now
    source: str | None = None
    lost_s: float = 0.0  # by all its peers together
    on_gpus: bool = False  # whether each of them holds a GPU


@dataclass(frozen=True, kw_only=True)
class EarlierAttempt:
    """An earlier attempt of the job, of which the same evidence tells, in short."""

    number: Whole  # from 1
    outcome: Outcome
    cls: str = field(metadata={"key": "class"})
    summary: str
    guilty_ranks: tuple[Rank, ...] = ()
    file: str | None = None
    line: int | None = None
    source: str | None = None  # of the first claim


@dataclass(frozen=True, kw_only=True)
class Action:
    """The next step for the job, and the fact behind it."""

    do: Act
    because: str
    host: str | None = None  # to exclude
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds since the job was started."""

    onset_s: float | None = None
    detected_s: float | None = None
    verdict_s: float | None = None


class Strength(Enum):
    """Levels of evidence behind a finding; the value is the verdict's `confidence`.

    CONCLUSIVE: the failure is on record itself, by whoever failed: the first exception, a signal, a message of DDP or of
    the kernel, arguments or modules that two sides wrote down and that differ.
    STRONG: records of all ranks concerned agree on what happened; one step of the explanation is inferred.
    LIKELY: the state is certain, and another reason for it, or an end of it, cannot be excluded.
    WEAK: a single kind of evidence (stacks alone, time alone), or what may be meant.
    GUESS: several readings fit equally well; this one says where to look.
    NONE: no claim is made.
    """

    CONCLUSIVE = 0.95
    STRONG = 0.85
    LIKELY = 0.75
    WEAK = 0.6
    GUESS = 0.5
    NONE = 0.0

    @classmethod
    def within(cls, confidence: float) -> Strength:
        """The highest level that claims no more than `confidence`."""
        return max((s for s in cls if s.value <= confidence), key=lambda s: s.value, default=cls.NONE)

    def at_most(self, other: Strength) -> Strength:
        """The lower of the two."""
        return min(self, other, key=lambda s: s.value)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The conclusion of one rule from one cell's evidence."""

    cls: str
    outcome: Outcome
    strength: Strength
    summary: str
    guilty_ranks: tuple[int, ...] = ()
    blocked_ranks: tuple[int, ...] = ()
    where: Where | None = None
    peers_at: Place | None = None
    evidence: tuple[Evidence, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    gaps: tuple[str, ...] = ()
    fix: str | None = None
    next: str | None = None
    actions: tuple[Act, ...] = ()  # the first that is possible; none where nothing is to be done
    mechanism: str | None = None  # the name of the rule; none where no rule concluded it

    @property
    def confidence(self) -> float:
        """The strength as a number."""
        return self.strength.value


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The answer, as verdict.json holds it."""

    outcome: Outcome
    cls: str = field(metadata={"key": "class"})
    confidence: float
    summary: str
    guilty_ranks: tuple[Rank, ...]
    blocked_ranks: tuple[Rank, ...]
    world_size: Rank
    where: Where | None
    peers_at: Place | None
    progress: Progress
    evidence: tuple[Evidence, ...]
    rejected: tuple[Rejected, ...]
    gaps: tuple[str, ...]
    fix: str | None
    next: str | None
    times: Times
    certainty: Certainty | None = None  # of a hang
    mechanism: str | None = None  # the name of the rule that concluded it, where one did
    action: Action | None = None
    peer_waits: tuple[PeerWait, ...] = ()  # those who are waited for now first, then by their total
    earlier: tuple[EarlierAttempt, ...] = ()  # attempts of the job before the one that is judged
    hypotheses: tuple[Hypothesis, ...] = ()  # where the evidence does not decide, the likeliest first
    stands_at: Place | None = (
        None  # of a divergence: the line where the first guilty rank stands, by its stack
    )
    because: Because | None = None  # of a divergence: why it came there, by recorded paths or by the source

    @functools.cached_property
    def guilty(self) -> frozenset[int]:
        """To ask of each of many ranks whether it is one of many."""
        return frozenset(self.guilty_ranks)

    @functools.cached_property
    def blocked(self) -> frozenset[int]:
        return frozenset(self.blocked_ranks)

    @property
    def signature(self) -> str:
        """Equal for the same failure: class and place, without ranks, paths or numbers that vary by run."""
        where = self.where or Where()
        collective = where.collective.op if where.collective else None
        place = (where.file or "").rsplit("/", 1)[-1]
        # A library's source is not kept: its line may be missing where the evidence is judged again.
        code = None if where.library else where.code
        parts = (self.cls, place, where.function, code, collective, where.parameter)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]

    def to_json(self) -> dict[str, Any]:
        """The document that CONTRACT promises, keys in its order."""
        # A million ranks, copied one by one, take seconds.
        body = dataclasses.asdict(dataclasses.replace(self, guilty_ranks=(), blocked_ranks=()))
        body |= {"guilty_ranks": list(self.guilty_ranks), "blocked_ranks": list(self.blocked_ranks)}
        rejected = [{"class": r.cls, "because": r.because, "source": r.source} for r in self.rejected]
        body["earlier"] = [
            {"class" if k == "cls" else k: v for k, v in row.items()} for row in body["earlier"]
        ]
        hypotheses = [{"class": each.pop("cls"), **each} for each in body["hypotheses"]]
        return {
            "schema_version": SCHEMA_VERSION,
            "outcome": body.pop("outcome"),
            "class": body.pop("cls"),
            "mechanism": body.pop("mechanism"),
            "certainty": body.pop("certainty"),
            **{**body, "rejected": rejected, "hypotheses": hypotheses},
            "signature": self.signature,
            "times": body["times"],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Verdict:
        """Reads what to_json wrote, of the shape that its name promises; keys of a newer schema are passed over."""
        return value_of(cls, document)


def attempt_of(number: int, verdict: Verdict) -> EarlierAttempt:
    """A verdict in short, where a later attempt is the answer."""
    where = verdict.where or Where()
    return EarlierAttempt(
        number=number,
        outcome=verdict.outcome,
        cls=verdict.cls,
        summary=verdict.summary,
        guilty_ranks=verdict.guilty_ranks,
        file=where.file,
        line=where.line,
        source=verdict.evidence[0].source if verdict.evidence else None,
    )
