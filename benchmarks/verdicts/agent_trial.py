#!/usr/bin/env python3
"""How many calls a coding agent needs until it has class and line of a hung job: `nsadiag mcp` on stdio, by the official client.

    python benchmarks/verdicts/agent_trial.py                  # ten scripts of repro/ and three other programs
    python benchmarks/verdicts/agent_trial.py -k solver        # those with that in their name

The agent follows the server's own instructions: `run` the launcher line, which answers with the verdict; where the line
is not in it, `code`; then `evidence` of the first fact. An answer counts if class, guilty ranks and line are those that
the program's promise names. After the count each id of the verdict is resolved.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO))

from mcp import Client, StdioServerParameters  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402
from shared import environment  # noqa: E402

from tests.support.promises import Promise, read_promise, script_of  # noqa: E402

SCRIPTS = (
    "rank_conditional_save", "data_divergent_early_stop", "uneven_inputs_shards", "collective_order_mismatch_task_heads",
    "collective_args_mismatch_broadcast_source", "local_lock_deadlock_lock_order", "io_stall_shard_read",
    "external_wait_silent_server", "p2p_mismatch_left_the_ring", "process_group_mismatch_members_only",
)  # fmt: skip
MOST_CALLS, MOST_TOKENS = 3, 1200
SECONDS = 240.0
# No tokenizer comes with the project. Words are cut into pieces of four letters, numbers into three digits, and every
# sign and indentation counts: more pieces than the vocabularies in use make of English, code and JSON.
PIECE = re.compile(r"[A-Za-z]{1,4}|\d{1,3}|\n *|[^\sA-Za-z\d]")


def tokens(text: str) -> int:
    """An upper estimate."""
    return len(PIECE.findall(text))


class Agent:
    """One session with the server, and the calls made in it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.calls: list[str] = []

    async def ask(self, tool: str, **arguments: Any) -> str:
        self.calls.append(tool)
        answer = await self._client.call_tool(tool, arguments)
        return str(answer.content[0].text)


async def trial(promise: Promise, folder: Path, patience: str) -> dict[str, Any]:
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "nsadiag", "mcp", "--allow-run"],
        cwd=folder,
        env=environment(NSADIAG_PATIENCE=patience),
    )
    with (folder / "server.log").open("w") as log:
        async with Client(stdio_client(server, errlog=log), read_timeout_seconds=2 * SECONDS) as client:
            agent = Agent(client)
            return {"name": promise.name, **await investigate(agent, promise)}


async def investigate(agent: Agent, promise: Promise) -> dict[str, Any]:
    text = await agent.ask("run", command=promise.command, timeout=SECONDS)
    try:
        verdict = json.loads(text)
    except ValueError:
        return {"said": text, "class": False, "ranks": False, "line": False, "calls": len(agent.calls)}
    directory, facts = verdict["directory"], list(verdict.get("facts", {}))
    shown = str(verdict.get("at", {}).get("code", ""))
    line = any(code in shown for code in promise.codes)
    if not line:  # the marked lines of both sides
        marked = [
            row for row in (await agent.ask("code", directory=directory)).splitlines() if "# <- " in row
        ]
        line = any(code in row for code in promise.codes for row in marked)
    if not line and facts:
        found = await agent.ask("evidence", id=facts[0], directory=directory)
        line = any(code in found for code in promise.codes)
    calls = len(agent.calls)
    answers = {fact: await agent.ask("evidence", id=fact, directory=directory) for fact in facts}
    return {
        "said": verdict["class"],
        "class": verdict["class"] in promise.classes,
        "ranks": tuple(verdict.get("guilty_ranks", ())) == promise.guilty_ranks,
        "line": line,
        "at": verdict.get("at", {}),
        "calls": calls,
        "tokens": tokens(text),
        "characters": len(text),
        "facts": len(facts),
        "resolved": sum("record" in answer for answer in answers.values()),
    }


def figures(rows: list[dict[str, Any]]) -> dict[str, Any]:
    right = [row for row in rows if row["class"] and row["line"] and row["calls"] <= MOST_CALLS]
    return {
        "jobs": len(rows),
        f"class_and_line_in_{MOST_CALLS}_calls": len(right),
        "ranks_right": sum(row["ranks"] for row in rows),
        "calls": {n: sum(row["calls"] == n for row in right) for n in range(1, MOST_CALLS + 1)},
        "tokens_max": max((row.get("tokens", 0) for row in rows), default=0),
        "over_the_limit": sum(row.get("tokens", 0) > MOST_TOKENS for row in rows),
        "ids": sum(row.get("facts", 0) for row in rows),
        "ids_resolved": sum(row.get("resolved", 0) for row in rows),
        "wrong": [row for row in rows if row not in right],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-k", default="", help="programs with this in their name")
    parser.add_argument("--patience", default="20", help="seconds until a suspected hang is taken for one")
    arguments = parser.parse_args()
    programs = [script_of(name) for name in SCRIPTS]
    programs += sorted((Path(__file__).parent / "agent_programs").glob("*.py"))
    rows = []
    for program in programs:
        if arguments.k not in program.stem:
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = asyncio.run(trial(read_promise(program), Path(folder), arguments.patience))
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    print(json.dumps(figures(rows), indent=1))


if __name__ == "__main__":
    main()
