"""How well `analyze` judges what people post: inputs rebuilt from public threads, with the truth beside them.

    python benchmarks/verdicts/posted.py [FOLDER] [--json] [--wrong] [-k NAME] [--hold] [--mutations N [--seed S]]

FOLDER holds NAME/input and NAME/truth.json (tests/golden/posted, if none is given). All are judged in this process.
`--wrong` prints the summaries of those that are not right; `--hold` adds what is right today to held.json, which a test keeps.
`--mutations` judges so many damaged copies instead, and prints what raised, or took more than LIMIT_S of CPU or MOST_BYTES.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks/verdicts")]

from shared import Row, answer, percent  # noqa: E402 - beside this file
from support.recordings.posted import GRADES, NOT_WRONG, Score, scored, truths  # noqa: E402 - beside the tests

from nsadiag.analysis.judgement import conclude  # noqa: E402
from nsadiag.errors import NsadiagError  # noqa: E402
from nsadiag.reports.formats.document import render_json  # noqa: E402
from nsadiag.reports.load import load_collected  # noqa: E402

POSTED = ROOT / "tests" / "golden" / "posted"
HELD = "held.json"
LEVELS = (0.95, 0.85, 0.75, 0.6, 0.5, 0.0)
LIMIT_S = 20
MOST_BYTES = 2 * 2**30  # of memory
Mutation = Callable[[random.Random, list[bytes]], list[bytes]]


def _at(rng: random.Random, lines: list[bytes]) -> int:
    return rng.randrange(len(lines) + 1)


def _without(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    first = _at(rng, lines)
    return lines[:first] + lines[first + rng.choice((1, 2, 10)) :]


def _cut(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    text = b"\n".join(lines)
    return text[: rng.randrange(len(text) + 1)].split(b"\n")


def _begun_late(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    text = b"\n".join(lines)
    return text[rng.randrange(len(text) + 1) :].split(b"\n")


def _flipped(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    text = bytearray(b"\n".join(lines) or b"x")
    for _ in range(rng.choice((1, 8, 200))):
        text[rng.randrange(len(text))] = rng.randrange(256)
    return bytes(text).split(b"\n")


def _of_other_numbers(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    odd = (b"0", b"-1", b"18446744073709551616", b"9" * 60, b"007", b"4294967295", b"")
    at = min(_at(rng, lines), len(lines) - 1)
    return [*lines[:at], re.sub(rb"\d+", lambda _: rng.choice(odd), lines[at]), *lines[at + 1 :]]


def _shuffled(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    return rng.sample(lines, len(lines))


def _with_a_stranger(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    odd = (
        b"\0" * 4000,
        b"\xff\xfe[rank",
        b"[rank1]:" * 3000,
        b"x" * 300_000,
        b'{"a":' * 500,
        b"(" * 2000,
        b"\x1b[3",
        b"\r\r\r|",
        b"frame #0: a<b<c",
    )
    first = _at(rng, lines)
    return [*lines[:first], rng.choice(odd), *lines[first:]]


def _repeated(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    return lines * rng.choice((2, 5))


def _prefixed(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    odd = (b"7: ", b"[rank5]: ", b"> ", b"    ", b"(Worker pid=1) ", b"2026-01-01T00:00:00Z stdout F ")
    head = rng.choice(odd)
    return [head + line if rng.random() < 0.9 else line for line in lines]


MUTATIONS: tuple[Mutation, ...] = (
    _without, _cut, _begun_late, _flipped, _of_other_numbers, _shuffled, _with_a_stranger, _repeated, _prefixed,
)  # fmt: skip


def mutated(folder: Path, count: int, seed: int) -> Iterator[str]:
    """Judges damaged copies as a user does, with the whole report; yields what came of those that failed."""
    rng, names = random.Random(seed), sorted(truths(folder))
    signal.signal(signal.SIGVTALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    for number in range(count):
        name = rng.choice(names)
        with tempfile.TemporaryDirectory() as home:
            copy = Path(shutil.copytree(folder / name / "input", Path(home) / "input"))
            file = rng.choice(sorted(each for each in copy.rglob("*") if each.is_file()))
            lines = file.read_bytes().split(b"\n")
            done = [rng.choice(MUTATIONS) for _ in range(rng.choice((1, 1, 2, 3)))]
            for mutate in done:
                lines = mutate(rng, lines) or [b""]
            file.write_bytes(b"\n".join(lines))
            signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
            try:
                render_json(load_collected(copy))
            except NsadiagError:
                pass  # refused, with the reason
            except Exception:
                yield f"{number} {name} {[each.__name__ for each in done]}\n{traceback.format_exc(limit=-4)}"
            finally:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _too_long(*_: object) -> None:
    raise TimeoutError(f"more than {LIMIT_S} s of CPU")


def figures(scores: list[Score]) -> Row:
    rows = [
        {**vars(s), "false": list(s.false), "met": sorted(s.met)}
        for s in sorted(scores, key=lambda s: s.name)
    ]
    return {
        "inputs": len(scores),
        **{f"class_{grade}": sum(s.grade == grade for s in scores) for grade in GRADES},
        "class_pct": percent(s.grade == "right" for s in scores),
        "ranks_pct": percent(s.ranks for s in scores),
        "line_pct": percent(s.line for s in scores),
        "advice_pct": percent(s.advice for s in scores),
        "told_false": sum(bool(s.false) for s in scores),
        "reliability": reliability(scores),
        "rows": rows,
    }


def reliability(scores: list[Score]) -> list[Row]:
    """Claimed confidence against how often the class is right, class and ranks are, and the class is at least not wrong."""
    found = []
    for level in LEVELS:
        of_level = [s for s in scores if s.cls != "-" and abs(s.confidence - level) < 0.01]
        if of_level:
            found.append(
                {
                    "stated_pct": round(100 * level),
                    "verdicts": len(of_level),
                    "right_pct": percent(s.grade == "right" for s in of_level),
                    "answers_pct": percent(s.grade == "right" and s.ranks for s in of_level),
                    "not_wrong_pct": percent(s.grade in NOT_WRONG for s in of_level),
                }
            )
    return found


def table(told: Row, *, wrong: bool) -> Iterator[str]:
    yield f"{'input':32} {'class':28} {'sure':>4}  {'class is':8} {'ranks':5} {'line':5} {'advice':6} false"
    for row in told["rows"]:
        marks = [
            "-" if row[key] is None else "yes" if row[key] else "no" for key in ("ranks", "line", "advice")
        ]
        false = "; ".join(each.partition(": ")[0] for each in row["false"])
        yield (
            f"{row['name']:32} {row['cls']:28} {row['confidence']:4.0%}  {row['grade']:8} "
            f"{marks[0]:5} {marks[1]:5} {marks[2]:6} {false}"
        ).rstrip()
        if wrong and (row["grade"] != "right" or "no" in marks or false):
            yield f"    {row['summary'][:400]}"
            yield from (f"    must not: {each[:300]}" for each in row["false"])
    yield ""
    yield ", ".join(f"{told[f'class_{grade}']} {grade}" for grade in GRADES) + f" of {told['inputs']} classes"
    yield (
        f"right: class {told['class_pct']} %, ranks {told['ranks_pct']} %, line {told['line_pct']} %, "
        f"advice {told['advice_pct']} %; {told['told_false']} say something false"
    )
    yield ""
    yield f"{'claimed':>7} {'verdicts':>8} {'right':>7} {'and ranks':>9} {'not wrong':>9}"
    for row in told["reliability"]:
        yield (
            f"{row['stated_pct']:5} % {row['verdicts']:8} {row['right_pct']:5} % {row['answers_pct']:7} % {row['not_wrong_pct']:7} %"
        )


def hold(folder: Path, scores: list[Score]) -> None:
    """Adds only: what was right once stays held."""
    path = folder / HELD
    held = json.loads(path.read_text()) if path.exists() else {}
    for each in scores:
        held[each.name] = sorted({*held.get(each.name, ()), *each.met})
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(held[name])}" for name in sorted(held))
    path.write_text(f"{{\n{lines}\n}}\n")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ask.add_argument("folder", type=Path, nargs="?", default=POSTED)
    ask.add_argument("-k", metavar="NAME", default="", help="only inputs with this in their name")
    ask.add_argument("--json", action="store_true")
    ask.add_argument("--wrong", action="store_true")
    ask.add_argument("--hold", action="store_true")
    ask.add_argument("--mutations", type=int, default=0)
    ask.add_argument("--seed", type=int, default=1)
    told = ask.parse_args()
    if told.mutations:
        failed = list(mutated(told.folder, told.mutations, told.seed))
        mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(
            *failed,
            f"{told.mutations - len(failed)} of {told.mutations} damaged copies judged or refused; {mib} MiB at most",
            sep="\n",
        )
        return
    conclude.RELIABILITY.clear()  # what is graded is the claim: this gives its worth
    scores = list(scored(told.folder, (name for name in truths(told.folder) if told.k in name)))
    if told.hold:
        hold(told.folder, scores)
    found = figures(scores)
    answer(found, table(found, wrong=told.wrong), as_json=told.json)


if __name__ == "__main__":
    main()
