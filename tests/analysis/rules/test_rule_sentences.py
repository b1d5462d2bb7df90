"""The sentences of verdicts read as English: what a rule says of each recording, concluded or declined, is free of known slips."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.recordings.golden import GOLDEN, unpack
from support.recordings.sentences import of_trials, of_verdict
from support.recordings.verdicts import Verdicts

from nsadiag.commands.explain.document import explain

NOUNS = (
    "ranks|steps|iterations|events|collectives|messages|nodes|hosts|parameters|buffers|batches|samples|stacks|epochs"
    "|loads|lines|calls|workers|snapshots|backwards|optimizer steps|recorded \\w+s|classes|threads"
)
SLIPS = {
    "a negative time": r"(?<![\w.:])-\d[\d.]* m?s\b",
    "all of one": r"\b[Aa]ll (of )?1 |\b(none|any) of 1 ",
    "one in the plural": rf"(?<![\w.,:#*-])1 ({NOUNS})\b",
    "nought where it is none": rf"(?<![\w.,:#*-])0 ({NOUNS})\b|(?<![\w.])(?<!member )0 of \d|\bof 0 ",
    "a doubled word": r"\b([A-Za-z]+) \1\b",
    "an unbalanced backtick": r"^[^`]*(`[^`]*`[^`]*)*`[^`]*$",
    "several in the singular": r"\brank \d+, \d+(?![.\d]| on)",
    "one in the plural form": r"\b[Rr]anks \d+ |(^|; |in which |and )[Rr]ank \d+ (are|have|wait|do)\b",
    "nobody named": r"\branks?  |(?<!\w)\(\s*\)",
    "a value of Python": r"\bNone\b(?! of)|\[\[|\{\w+\}",
    "a stray space or stop": r"  | [,;:]|(?<!\.)\.\.(?!\.)",
    "a fragment": r"^(with|where|what|which|when|whose) |; ranks? [\d, -]+: (in|at|with|without|the|its|where|all|doing) ",
    "a group that is a number": r"#\d+ of \d|\bof \d+ are in\b",
}
# Quoted: source, places, names, messages of exceptions; and what torch, or the agent that made the recording, said itself.
QUOTED = re.compile(
    r"`[^`]*`|\w*(Error|Exception|Interrupt)\b: .*|'[^']*'|\(sh -c .*\)|[^\s(]+\.py:\d+ in [^\s),;:]+"
)
SAID_BY_OTHERS = re.compile(
    r"(nothing moved: |the job was not still.*: )?no (event|progress|work)|the job was not still"
    r"|(.*the last snapshot:? )?rank \d+ wrote \d+ events and issued|Expected to|Your training graph|DDP expects|DDP: |rank \d+: "
)


def slips_in(text: str) -> Iterator[str]:
    plain = QUOTED.sub("~", text)
    if not SAID_BY_OTHERS.match(text.partition("the same way: ")[2] or text):
        yield from (name for name, pattern in SLIPS.items() if re.search(pattern, plain))


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "archive", sorted(GOLDEN.glob("*.tar.*")), ids=lambda path: path.name.partition(".")[0]
)
def test_the_sentences_of_a_verdict_have_no_slips(archive: Path, verdicts: Verdicts, tmp_path: Path) -> None:
    said = [*of_verdict(verdicts.of(archive)), *of_trials(explain([unpack(archive, tmp_path).path]))]
    found = {f"{slip}: {text}" for _, text in said for slip in slips_in(text)}
    assert found == set()


@pytest.mark.parametrize(
    "text",
    [
        "the longest silence was -0.0 s",
        "all 1 ranks ran to their exit handlers",
        "none of 1 ranks was in init_process_group",
        "rank 0 wrote 1 events",
        "in 0 steps",
        "0 of 2 ranks completed steps",
        "rank 1 waits for for it",
        "the loop `while x never ends",
        "rank 0, 1 spins in a collective",
        "no checkpointed function of rank  ran",
        "rank 1 issued all_gather [[1]] Long",
        "where it was while rank 1 waited",
        "The ranks disagree; rank 1: the minority",
        "rank 0 is in all_reduce #7 of 1",
        "Rank 1 was killed after None steps",
    ],
)  # fmt: skip
def test_a_planted_slip_is_found(text: str) -> None:
    assert list(slips_in(text))
