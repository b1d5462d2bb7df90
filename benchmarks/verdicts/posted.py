"""How well `analyze` judges what people post: inputs rebuilt from public threads, with the truth beside them.

    python benchmarks/verdicts/posted.py [FOLDER] [--json] [--wrong] [-k NAME] [--hold]

FOLDER holds NAME/input and NAME/truth.json (tests/golden/posted, if none is given). All are judged in this process.
`--wrong` prints the summaries of those that are not right; `--hold` adds what is right today to held.json, which a test keeps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks/verdicts")]

from shared import Row, answer, percent  # noqa: E402 - beside this file
from support.posted import GRADES, NOT_WRONG, Score, scored, truths  # noqa: E402 - beside the tests

POSTED = ROOT / "tests" / "golden" / "posted"
HELD = "held.json"
LEVELS = (0.95, 0.85, 0.75, 0.6, 0.5, 0.0)


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
    """Stated confidence against how often the class is right, and at least not wrong."""
    found = []
    for level in LEVELS:
        of_level = [s for s in scores if s.cls != "-" and abs(s.confidence - level) < 0.01]
        if of_level:
            found.append(
                {
                    "stated_pct": round(100 * level),
                    "verdicts": len(of_level),
                    "right_pct": percent(s.grade == "right" for s in of_level),
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
    yield f"{'stated':>6} {'verdicts':>8} {'right':>7} {'not wrong':>9}"
    for row in told["reliability"]:
        yield (
            f"{row['stated_pct']:5} % {row['verdicts']:8} {row['right_pct']:5} % {row['not_wrong_pct']:7} %"
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
    told = ask.parse_args()
    scores = list(scored(told.folder, (name for name in truths(told.folder) if told.k in name)))
    if told.hold:
        hold(told.folder, scores)
    found = figures(scores)
    answer(found, table(found, wrong=told.wrong), as_json=told.json)


if __name__ == "__main__":
    main()
