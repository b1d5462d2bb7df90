"""Inputs rebuilt from public threads, and how well their verdicts agree with the truth written beside them.

A folder NAME holds `input/` and `truth.json`. The truth was written before the first judgement.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nsadiag.analysis.verdict import judge_evidence
from nsadiag.errors import UsageError
from nsadiag.evidence.records import Verdict

Grade = Literal["right", "general", "unknown", "refused", "wrong"]
Truth = dict[str, Any]
POSTED = Path(__file__).resolve().parents[2] / "golden" / "posted"
PLACE = re.compile(r"([\w.-]+\.py):(\d+)")
CLAIMS_NOTHING = ("unknown", "incomplete")
REFUSED = "refused"  # in a truth: nothing failed, so that there is nothing to judge
NOT_WRONG: tuple[Grade, ...] = ("right", "general", "unknown")
GRADES: tuple[Grade, ...] = ("right", "general", "unknown", "refused", "wrong")


@dataclass(frozen=True, kw_only=True)
class Score:
    """One verdict against the truth; None where the truth says nothing of it."""

    name: str
    evidence: str
    cls: str
    confidence: float
    grade: Grade
    ranks: bool
    line: bool | None
    advice: bool | None
    false: tuple[str, ...]  # sentences that a reader gets and must not: false, and misleading
    summary: str

    @property
    def met(self) -> frozenset[str]:
        """What of the truth the verdict meets."""
        told = {
            "class": self.grade == "right",
            "not wrong": self.grade in NOT_WRONG,
            "ranks": self.ranks,
            "line": self.line,
            "advice": self.advice,
            "nothing false": not self.false,
        }
        return frozenset(key for key, is_met in told.items() if is_met)


def truths(folder: Path) -> dict[str, Truth]:
    """By name."""
    return {path.parent.name: json.loads(path.read_text()) for path in sorted(folder.glob("*/truth.json"))}


def scored(folder: Path, names: Iterable[str]) -> Iterator[Score]:
    for name in names:
        yield score(folder / name)


def given(folder: Path) -> Path:
    """The input as a user names it: the one file, or the folder of several."""
    files = list((folder / "input").iterdir())
    return files[0] if len(files) == 1 and files[0].is_file() else folder / "input"


def score(folder: Path) -> Score:
    """Judges the input."""
    truth = json.loads((folder / "truth.json").read_text())
    try:
        verdict = judge_evidence(given(folder))
    except UsageError as error:
        return _refused(folder.name, truth, str(error))
    return compared(folder.name, truth, verdict)


def compared(name: str, truth: Truth, verdict: Verdict) -> Score:
    return Score(
        name=name,
        evidence=truth["evidence"],
        cls=verdict.cls,
        confidence=verdict.confidence,
        grade=_grade(truth, verdict.cls),
        ranks=_ranks_are_right(truth, verdict),
        line=_line_is_right(truth["line"], verdict),
        advice=(verdict.action.do if verdict.action else "none") in truth["advice_right"]
        if "advice_right" in truth
        else None,
        false=tuple(_false_sentences(truth, told_by(verdict))),
        summary=verdict.summary,
    )


def told_by(verdict: Verdict) -> list[str]:
    """The sentences that send a reader somewhere: not what was ruled out, nor what is missing."""
    action = verdict.action
    told = [f"{verdict.outcome} {verdict.cls}", verdict.summary, verdict.fix, verdict.next]
    told += [f"{action.do}: {action.because}"] if action else []
    told += [each.claim for each in verdict.evidence]
    return [text for text in told if text]


def _false_sentences(truth: Truth, told: list[str]) -> Iterator[str]:
    for pattern in truth.get("must_not", ()):
        if any(re.search(pattern, text) for text in told):
            yield f"{pattern}: {next(text for text in told if re.search(pattern, text))}"


def _refused(name: str, truth: Truth, why: str) -> Score:
    """No verdict is the right answer where nothing in the input failed."""
    is_right = REFUSED in truth["classes_right"]
    return Score(
        name=name,
        evidence=truth["evidence"],
        cls="-",
        confidence=0.0,
        grade="right" if is_right else "refused",
        ranks=is_right,
        line=None if truth["line"] is None else False,
        advice=is_right if "advice_right" in truth else None,
        false=(),
        summary=why,
    )


def _grade(truth: Truth, cls: str) -> Grade:
    if cls in truth["classes_right"]:
        return "right"
    if cls in CLAIMS_NOTHING:
        return "unknown"
    return "general" if cls in truth.get("general", ()) else "wrong"


def _ranks_are_right(truth: Truth, verdict: Verdict) -> bool:
    named = sorted(verdict.guilty_ranks)
    return any(
        named == ([] if isinstance(answer, str) else sorted(answer))
        for answer in (truth["guilty"], *truth.get("guilty_also", ()))
    )


def _line_is_right(line: str | None, verdict: Verdict) -> bool | None:
    places = PLACE.findall(line or "")
    if not places:
        return None
    where = verdict.where
    named = (Path(where.file).name, str(where.line)) if where and where.file else None
    return named in places
