"""The shapes of what nsadiag concludes and plans itself: runs, verdicts, cells, bisections, shrinkings."""

from __future__ import annotations

from nsadiag.evidence.documents.shapes import (
    anything,
    between,
    count,
    either,
    maybe,
    number,
    record,
    rows,
    table,
    text,
    whole,
)
from nsadiag.evidence.spans import MOST_RANKS

RANK = between(0, MOST_RANKS)
WORLD = between(1, MOST_RANKS)
TEXTS, RANKS, SIZES = rows(text), rows(RANK), rows(rows(whole))
COLLECTIVE = record(
    {"op": text, "group": text}, {"seq": maybe(whole), "sizes": maybe(SIZES), "dtypes": maybe(TEXTS)}
)
LINE = record({"file": text, "line": count}, {"function": maybe(text), "code": maybe(text)})
WHERE = record(
    {},
    {
        "file": maybe(text), "line": maybe(count), "function": maybe(text), "code": maybe(text), "host": maybe(text),
        "collective": maybe(COLLECTIVE), "parameter": maybe(text), "module": maybe(text), "bucket": maybe(count),
        "step": maybe(count), "phase": maybe(text),
    },
)  # fmt: skip
PROGRESS = record(
    {},
    {
        "steps_done": maybe(count), "rate_per_s": maybe(number), "eta_s": maybe(number), "predicted_s": maybe(number),
        "unit": text,
    },
)  # fmt: skip
PEER_WAIT = record(
    {"rank": RANK, "total_s": number, "now_s": number, "longest_s": number, "times": count},
    {"waiters": RANKS, "what": maybe(text), "at": maybe(LINE), "source": maybe(text)},
)
ACTION = record({"do": text, "because": text}, {"host": maybe(text), "source": maybe(text)})
VERDICT = record(
    {
        "outcome": text, "class": text, "confidence": number, "summary": text, "guilty_ranks": RANKS,
        "blocked_ranks": RANKS, "world_size": between(0, MOST_RANKS), "where": maybe(WHERE), "peers_at": maybe(LINE),
        "progress": PROGRESS, "evidence": rows(record({"claim": text, "source": text})),
        "rejected": rows(record({"class": text, "because": text}, {"source": maybe(text)})), "gaps": TEXTS, "fix": maybe(text),
        "next": maybe(text), "times": table(maybe(number)),
    },
    {"signature": text, "peer_waits": rows(PEER_WAIT), "action": maybe(ACTION)},
)  # fmt: skip
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
    },
)  # fmt: skip
TRIAL = record(
    {"outcome": text, "class": text, "summary": text, "directory": text},
    {"fix": maybe(text), "where": maybe(WHERE)},
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
