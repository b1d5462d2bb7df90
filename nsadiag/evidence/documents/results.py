"""The shapes of what nsadiag concludes and plans itself: runs, verdicts, cells, bisections, shrinkings."""

from __future__ import annotations

from nsadiag.evidence.documents.shapes import (
    anything,
    between,
    count,
    either,
    flag,
    maybe,
    number,
    record,
    rows,
    table,
    text,
    whole,
)
from nsadiag.evidence.documents.values import row_at
from nsadiag.evidence.spans import MOST_RANKS

TEXTS = rows(text)
WORLD = between(1, MOST_RANKS)
VERDICT = row_at("..records:Verdict", signature=text)
CELL = record(
    {},
    {
        "id": text, "factors": table(anything), "world_size": WORLD, "state": text, "wall_s": maybe(number),
        "costs": maybe(table(maybe(number))), "predicted": maybe(table(table(anything))), "beside": maybe(number),
        "gpus": maybe(TEXTS), "verdict": maybe(VERDICT), "command": either(TEXTS, text), "env": table(text),
    },
)  # fmt: skip
RUN = record(
    {},
    {
        "kind": text, "name": text, "command": either(TEXTS, text), "world_size": maybe(between(0, MOST_RANKS)),
        "host": text, "started_at": text, "ended_at": maybe(text), "versions": table(anything), "machine": table(anything),
        "environment": table(text), "gaps": maybe(TEXTS), "exit_code": maybe(whole), "nonce": text,
        "code": record({"commit": text}, {"changed": maybe(flag)}),
        "earlier": rows(record({"directory": text, "signature": text, "guilty_ranks": rows(whole)}, {})),
    },
)  # fmt: skip
TRIAL = record(
    {"outcome": text, "class": text, "summary": text, "directory": text},
    {"fix": maybe(text), "where": maybe(row_at("..records:Where"))},
)
POINT = record(
    {"label": text, "state": text, "failures": count, "runs": rows(TRIAL)},
    {"step_s": maybe(number), "subject": maybe(text)},
)
BISECTION = record(
    {
        "name": text, "axis": text, "fixed": maybe(text), "summary": text, "conclusion": text, "points": rows(POINT),
        "points_in_all": count, "command": TEXTS, "first_bad": maybe(text),
    },
    {"last_good": maybe(text)},
)  # fmt: skip
SHRINKING = record(
    {"name": text, "conclusion": text, "trials": count, "seconds": number, "notes": TEXTS},
    {
        "source": maybe(text), "script": maybe(text), "run": maybe(text), "why": maybe(text), "lines": count,
        "lines_before": count, "confirmed": count, "confirmations": count,
    },
)  # fmt: skip

DOCUMENTS = {
    "bisect.json": BISECTION,
    "cell.json": CELL,
    "run.json": RUN,
    "shrink.json": SHRINKING,
    "verdict.json": VERDICT,
}
