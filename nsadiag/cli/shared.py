"""The application, the options that several commands share, and how results are printed."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, cast

import typer

from nsadiag.cli.assistance import completion
from nsadiag.cli.assistance.help import Application, Commands
from nsadiag.errors import UsageError, did_you_mean
from nsadiag.printing import show
from nsadiag.version import __version__

if TYPE_CHECKING:
    from nsadiag.cluster.place import Place
    from nsadiag.commands.matrix.run import MatrixResult
    from nsadiag.commands.nodes import NodeResult
    from nsadiag.commands.run import RunResult
    from nsadiag.reports import Report
    from nsadiag.reports.terminal.screen import Screen

UNBROKEN = 100_000  # columns
BLANKS = re.compile(r"[ \t]+(?=\n|\Z)")


app = Application(
    name="nsadiag",
    cls=Commands,
    help="Find the rank, the line and the reason when a distributed PyTorch job hangs, crawls, crashes or trains wrong.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich's takes as long to import as all the rest
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        show(f"nsadiag {__version__}")
        raise typer.Exit


@app.callback()
def every_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options before the command."""


NODES_PANEL = "Several nodes"
SCHEDULERS = "Slurm and Ray"

OUT = typer.Option(
    "--out", "-o", metavar="DIR", help="Directory to write to  [default: artifacts/<time>-<name>]"
)
JSON = typer.Option("--json", help="Print a JSON document on stdout and nothing else")
USER_CODE = typer.Option(
    "--user-code",
    metavar="PKG,...",
    envvar="NSADIAG_USER_CODE",
    help="Installed packages to treat as your code, besides the one you run",
    rich_help_panel="Recording",
)
FORMAT = typer.Option(
    "--format",
    metavar="FORMAT",
    help="terminal, md, html, json, junit, github, sarif, issue, perfetto or speedscope",
    autocompletion=completion.formats,
)
PATHS = typer.Argument(
    metavar="PATH...",
    help="A run or matrix directory; or dumps, stacks and logs of other tools: files, folders, archives, - for standard input",
    autocompletion=completion.runs,
)
VERBOSE = typer.Option("--verbose", "-v", help="Print all evidence, and everything that was ruled out")
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
FORCE = typer.Option("--force", help="Replace an earlier run in --out")
# Spelled as torchrun's, which takes both dashes and underscores.
NNODES = typer.Option(
    "--nnodes",
    metavar="N",
    help="Number of nodes; run the same command on each",
    min=1,
    rich_help_panel=NODES_PANEL,
)
NODE_RANK = typer.Option(
    "--node-rank", "--node_rank", metavar="N", help="Index of this node, from 0", rich_help_panel=NODES_PANEL
)
MASTER_ADDR = typer.Option(
    "--master-addr",
    "--master_addr",
    metavar="HOST",
    help="Name or address of node 0, as seen from the others",
    rich_help_panel=NODES_PANEL,
)
MASTER_PORT = typer.Option(
    "--master-port",
    "--master_port",
    metavar="PORT",
    help="Port on node 0 where the nodes meet  [default: 29450]",
    min=1,
    max=65535,
    rich_help_panel=NODES_PANEL,
)
LOCAL_ADDR = typer.Option(
    "--local-addr",
    "--local_addr",
    metavar="ADDR|INTERFACE",
    help="On node 0: listen on this address or interface only",
    rich_help_panel=NODES_PANEL,
)
RUN_TOKEN = typer.Option(
    "--run-token",
    metavar="TOKEN",
    help="Secret shared by all nodes; safer in NSADIAG_RUN_TOKEN",
    rich_help_panel=NODES_PANEL,
)
WAIT = typer.Option(
    "--wait", metavar="SECONDS", help="Time to wait for all nodes to join", min=1, rich_help_panel=NODES_PANEL
)
GPUS_PER_NODE = typer.Option(
    "--gpus-per-node",
    metavar="N",
    help="GPUs that a job gets on each node",
    min=1,
    rich_help_panel=SCHEDULERS,
)
RAY_ADDRESS = typer.Option(
    "--address",
    metavar="HOST:PORT",
    help="Ray: the cluster  [default: RAY_ADDRESS, or the one that this machine belongs to]",
    rich_help_panel=SCHEDULERS,
)
RUNTIME_ENV = typer.Option(
    "--runtime-env",
    metavar="FILE",
    help="Ray: YAML of a runtime environment, as ray job submit takes it",
    rich_help_panel=SCHEDULERS,
)


def console(*, stderr: bool = False) -> Screen:
    """As wide as the terminal; into a pipe or a file each sentence is one line, for grep and less, unless COLUMNS is set."""
    from nsadiag.reports.terminal.screen import Screen

    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Screen(stderr=stderr)
    width = None if "COLUMNS" in os.environ else UNBROKEN
    return Screen(file=cast(TextIO, _Piped(stream)), width=width)


class _Piped:
    """A stream whose lines have no blanks at their ends, with which tables are filled up."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(BLANKS.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def print_directory(directory: Path, *, as_json: bool, is_new: bool = False, verbose: bool = False) -> None:
    """The report; of a new result GitHub hears as well, where it runs there."""
    from nsadiag.reports import load_report

    report = load_report(directory)
    print_report(report, as_json=as_json, verbose=verbose)
    if is_new:
        from nsadiag.commands.messages.github import annotate

        annotate(report)


def print_report(report: Report, *, as_json: bool, verbose: bool = False) -> None:
    if as_json:
        from nsadiag.reports.formats.document import render_json

        show(render_json(report))
    else:
        from nsadiag.reports import print_report

        print_report(report, console(), everything=verbose)


def check_format(name: str) -> None:
    """Raises UsageError where there is no such format."""
    if name == "terminal":
        return
    from nsadiag.reports.formats.registry import REPORTERS

    if name not in REPORTERS:
        raise UsageError(f"no such format: {name}", f"choose from {', '.join(REPORTERS)}")


def print_in(report: Report, format_: str, *, verbose: bool = False) -> None:
    """The report in a format, on stdout."""
    if format_ in ("terminal", "json"):
        print_report(report, as_json=format_ == "json", verbose=verbose)
        return
    from nsadiag.reports.formats.registry import REPORTERS

    text = REPORTERS[format_](report)
    show(text, end="" if text.endswith("\n") or not text else "\n")


def count_as_user_code(packages: str | None) -> None:
    """Hands the names on to the job, whose ranks record them. Raises UsageError for what is no package's name."""
    from nsadiag.evidence.user_code import NAME, NAMED

    wrong = [
        name for name in (packages or "").split(",") if name.strip() and not NAME.fullmatch(name.strip())
    ]
    if wrong:
        raise UsageError(
            f"--user-code: {wrong[0]!r} is no package", "give names as one imports them: uxpkg,tools"
        )
    if packages:
        os.environ[NAMED] = packages


def stall(text: str) -> float | None:
    """Seconds of --stall-after; None to learn them."""
    seconds = _seconds("--stall-after", text)
    if seconds == 0:
        raise UsageError("--stall-after is 0", "give a positive number of seconds, or auto")
    return seconds


def patience(text: str) -> float | None:
    """Seconds of --patience; None to learn them."""
    return _seconds("--patience", text)


def _seconds(option: str, text: str) -> float | None:
    if text == "auto":
        return None
    try:
        seconds = seconds_in(text)
    except ValueError:
        raise UsageError(f"{option} is {text!r}", "give seconds, or 90s, 10m, 2h, or auto") from None
    if not seconds >= 0:  # not a number is not positive either
        raise UsageError(f"{option} is {text}", "give a positive number of seconds, or auto")
    return seconds


def seconds_in(text: str) -> float:
    """The seconds in `90`, `90s`, `10m`, `2h` or `1d`. Raises ValueError."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS_S else (text, "s")
    return float(number) * UNITS_S[unit]


def limit(given: str | float) -> float:
    """A limit as an option has it: 0 or more. Raises typer.BadParameter."""
    try:
        seconds = seconds_in(str(given))
    except ValueError:
        raise typer.BadParameter("no duration") from None
    if not seconds >= 0:
        raise typer.BadParameter("not greater than or equal to 0")
    return seconds


def place_of(
    nnodes: int | None,
    node_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
    local_addr: str | None,
    run_token: str | None,
    wait: float,
) -> Place | None:
    """The meeting place of this node's agent and the others; None for a single node."""
    from nsadiag.cluster.protocol.tokens import TOKEN_VARIABLE

    given = nnodes, node_rank, master_addr, master_port, local_addr, run_token
    if nnodes == 1 or (all(value is None for value in given) and TOKEN_VARIABLE not in os.environ):
        return None
    from nsadiag.cluster.place import checked_place

    return checked_place(
        nnodes=nnodes,
        node_rank=node_rank,
        master_addr=master_addr,
        master_port=master_port,
        local_addr=local_addr,
        token=run_token,
        wait_s=wait,
    )


def print_of_node(result: RunResult | MatrixResult | NodeResult, *, as_json: bool) -> None:
    """Node 0 has the whole to show, the others what they saw."""
    from nsadiag.commands.nodes import NodeResult

    if not isinstance(result, NodeResult):
        print_directory(result.directory, as_json=as_json, is_new=True)
    elif as_json:
        show(json.dumps(result.to_json(), indent=1))
    else:
        show(result.shown())
    raise typer.Exit(result.exit_code)


def check_probes(spec: str) -> None:
    from nsadiag.evidence.probes import PROBE_NAMES, unknown_in

    unknown = unknown_in(spec)
    if unknown:
        near = did_you_mean(unknown[0], ("light", "full", "none", *PROBE_NAMES))
        raise UsageError(
            f"no such probe: {unknown[0]}",
            near or f"choose light, full, none, or from {', '.join(PROBE_NAMES)}",
        )
