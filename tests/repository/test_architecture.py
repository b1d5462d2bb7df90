"""Who may import whom: the table of docs/architecture.md as data, held against every import statement there is."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.documents.imports import ROOT, Arrow, arrows, module_name

EVERY_THIRD_PARTY = frozenset(
    {"typer", "click", "rich", "jinja2", "yaml", "pydantic", "pandas", "numpy", "psutil", "submitit"}
)
EVERY_ROOM_BUT_WORKER = frozenset(
    f"nsadiag.{room}"
    for room in (
        "agent", "analysis", "cli", "cluster", "commands", "engines", "errors", "evidence", "experiments", "printing", "repair", "reports", "source", "spec",
    )
)  # fmt: skip
# Besides the standard library, the room itself, and these, which every nsadiag room may import.
COMMON = ("nsadiag", "nsadiag.deadlines", "nsadiag.errors", "nsadiag.printing", "nsadiag.version")
MAY_IMPORT: dict[str, frozenset[str]] = {
    "nsa": frozenset(
        {
            "torch",
            "triton",
            "flash_attn",
            "numpy",
            "yaml",
            "datasets",
            "torchdata",
            "tensorboard",
            "transformers",
            "tokenizers",
            "wandb",
        }
    ),
    "nsadiag.deadlines": frozenset(),
    "nsadiag.errors": frozenset(),
    "nsadiag.printing": frozenset(),
    "nsadiag.version": frozenset(),
    "nsadiag.evidence": frozenset(),
    "nsadiag.source": frozenset({"nsadiag.evidence"}),
    "nsadiag.spec": frozenset({"numpy", "yaml", "pydantic"}),
    "nsadiag.worker": frozenset({"torch", "nsadiag.evidence"}),
    "nsadiag.agent": frozenset({"psutil", "pynvml", "nsadiag.evidence", "nsadiag.source", "nsadiag.spec"}),
    "nsadiag.cluster": frozenset({"psutil", "nsadiag.evidence", "nsadiag.agent"}),
    "nsadiag.engines": frozenset(
        {
            "psutil",
            "submitit",
            "ray",
            "nsadiag.evidence",
            "nsadiag.spec",
            "nsadiag.agent",
            "nsadiag.cluster",
        }
    ),
    "nsadiag.analysis": frozenset({"numpy", "zstandard", "nsadiag.evidence", "nsadiag.source"}),
    "nsadiag.experiments": frozenset(
        {
            "numpy",
            "nsadiag.spec",
            "nsadiag.agent",
            "nsadiag.engines",
            "nsadiag.analysis",
            "nsadiag.evidence",
            "nsadiag.source",
        }
    ),
    "nsadiag.repair": frozenset({"nsadiag.evidence", "nsadiag.source"}),
    "nsadiag.reports": frozenset(
        {"rich", "jinja2", "markupsafe", "pandas", "pygments", "nsadiag.analysis", "nsadiag.evidence"}
    ),
    "nsadiag.commands": EVERY_THIRD_PARTY | EVERY_ROOM_BUT_WORKER,
    "nsadiag.cli": EVERY_THIRD_PARTY | EVERY_ROOM_BUT_WORKER,
    "nsadiag.__main__": frozenset({"nsadiag.cli"}),
    "nsadiag.integrations": frozenset(
        {
            "transformers",
            "lightning",
            "pytorch_lightning",
            "wandb",
            "mlflow",
            "ray",
            "nsadiag.evidence",
            "nsadiag.worker",
            "nsadiag.reports",
        }
    ),
    "nsadiag.pytest_plugin": frozenset({"pytest", "torch", "nsadiag.worker"}),
    "nsadiag": frozenset({"nsadiag.commands", "nsadiag.worker", "nsadiag.reports"}),
}
# The warm launcher is torch's, and a rank forked from it is a worker before it is the user's command; agents meet in
# torch's store, in a process of its own.
ONLY_INSIDE_FUNCTIONS = {
    ("nsadiag.agent.job.warm_launcher", "torch"),
    ("nsadiag.agent.job.warm_rank", "torch"),
}
ANYWHERE = {
    ("nsadiag.agent.job.warm_rank", "nsadiag.worker"),
    ("nsadiag.agent.checkup.gpu_trial", "torch"),  # a process of its own, that loads GPUs
}


def room(module: str) -> str:
    """The longest row of the table that holds the module, or its top-level package."""
    rows = [row for row in MAY_IMPORT if module == row or module.startswith(row + ".")]
    longest = max(rows, key=len, default=module.partition(".")[0])
    # `import nsadiag` alone is the way to the package's own place and version.
    return longest if longest != "nsadiag" or module == "nsadiag" else module


def is_allowed(arrow: Arrow) -> bool:
    here, there = room(arrow.module), room(arrow.target)
    if there in sys.stdlib_module_names or there == here:
        return True
    if here.startswith("nsadiag") and there in COMMON:
        return True
    if (arrow.module, there) in ANYWHERE:
        return True
    if (arrow.module, there) in ONLY_INSIDE_FUNCTIONS:
        return arrow.in_function
    return there in MAY_IMPORT.get(here, frozenset())


def violations(root: Path) -> list[str]:
    files = [p for package in ("nsa", "nsadiag") for p in sorted((root / package).rglob("*.py"))]
    return [str(arrow) for path in files for arrow in arrows(path, root) if not is_allowed(arrow)]


def test_nobody_imports_what_the_table_does_not_allow() -> None:
    assert violations(ROOT) == []


def test_every_room_has_its_row_in_the_table() -> None:
    entries = [p for p in (ROOT / "nsadiag").iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()]
    rooms = {module_name(p, ROOT) for p in entries} - {"nsadiag"}
    assert rooms <= set(MAY_IMPORT)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("nsa/model.py", "import nsadiag.errors"),
        ("nsadiag/agent/watching/watch.py", "import nsa.model"),
        ("nsadiag/agent/watching/watch.py", "import torch"),
        ("nsadiag/agent/watching/watch.py", "def f():\n    import torch.distributed"),
        ("nsadiag/agent/job/warm_launcher.py", "import torch"),
        ("nsadiag/agent/job/warm_launcher.py", "from nsadiag.worker import session"),
        ("nsadiag/analysis/ingest/run_directory.py", "def f():\n    if True:\n        from torch import nn"),
        ("nsadiag/analysis/ingest/run_directory.py", "from nsadiag import agent"),
        ("nsadiag/analysis/ingest/run_directory.py", "from ...agent import watch"),
        ("nsadiag/cli/run.py", "if TYPE_CHECKING:\n    from nsadiag.worker.recorder import Recorder"),
        ("nsadiag/cli/run.py", "import torch"),
        ("nsadiag/commands/run.py", "import nsadiag.worker"),
        ("nsadiag/errors.py", "import rich"),
        ("nsadiag/evidence/ring/blackbox.py", "from nsadiag import worker"),
        ("nsadiag/reports/formats/html.py", "class A:\n    from nsadiag.commands import run"),
        ("nsadiag/worker/probes/io.py", "import numpy"),
        ("nsadiag/worker/probes/io.py", "importlib.import_module('nsadiag.agent.watching.watch')"),
        ("nsadiag/stray.py", "import nsadiag.worker"),
    ],
)
def test_a_planted_violation_is_caught(tmp_path: Path, file: str, source: str) -> None:
    for package in ("agent", "worker", "commands"):
        (tmp_path / "nsadiag" / package).mkdir(parents=True)
    planted = tmp_path / file
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(source + "\n")
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("nsadiag/agent/job/warm_launcher.py", "def f():\n    import torch"),
        ("nsadiag/agent/job/warm_rank.py", "from nsadiag.worker import crash"),
        ("nsadiag/worker/probes/io.py", "import torch, os.path\nfrom nsadiag.evidence import layout"),
        ("nsadiag/agent/job/launch.py", "import nsadiag\nfrom nsadiag.errors import UsageError"),
        ("nsa/model.py", "from .attention import layer\nimport triton.language as tl"),
    ],
)
def test_what_the_table_allows_passes(tmp_path: Path, file: str, source: str) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(source + "\n")
    assert violations(tmp_path) == []


def test_what_runs_inside_the_users_ranks_needs_no_numpy() -> None:
    needed, pending = set(), ["nsadiag.worker"]
    while pending:
        for path in files_of(pending.pop()):
            for arrow in arrows(path, ROOT):
                if arrow.target not in needed:
                    needed.add(arrow.target)
                    pending.append(arrow.target)
    assert "nsadiag.evidence.ring.blackbox" in needed
    assert {room(target) for target in needed} - {*sys.stdlib_module_names, "imp"} == {
        "nsadiag.evidence", "nsadiag.worker", "torch",
    }  # fmt: skip


def files_of(module: str) -> list[Path]:
    """The module's file; of the worker, every file, since the bootstrap starts it by path."""
    if not module.startswith("nsadiag"):
        return []
    place = ROOT.joinpath(*module.split("."))
    if module == "nsadiag.worker":
        return sorted(place.rglob("*.py"))
    return [p for p in (place.with_suffix(".py"), place / "__init__.py") if p.exists()]


def test_the_command_line_loads_nothing_heavy_before_it_knows_the_command() -> None:
    code = "import sys, nsadiag.cli; print(*{'torch', 'pandas', 'numpy', 'jinja2', 'psutil', 'yaml'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# -- one door for evidence --------------------------------------------------------------------------

# Calls by which a file is read. Whatever lies in a directory that others wrote is read by `evidence/documents/files.py` alone.
READS = {
    "open", "read_text", "read_bytes", "load", "fromfile", "memmap", "mmap", "copyfile", "copy2", "copytree", "getline",
}  # fmt: skip
READING_ROOMS = ("analysis", "reports", "commands", "cluster", "source")
# Files that read something else, and what.
READS_ELSE = {
    "analysis/external/inputs/staging.py": "standard input, into a folder of its own",
    "analysis/external/inputs/unpack.py": "members of an archive that the one function opened",
    "analysis/external/recognise.py": "a compressed file that the one function opened",
    "analysis/ingest/dumps/plain.py": "bytes that are in memory",
    "analysis/ingest/dumps/pool.py": "/proc/self/statm",
    "analysis/judgement/own_fault.py": "Python files of this machine, checked before",
    "source/archive.py": "Python files of this machine, checked before",
    "source/loop_exits.py": "Python files of this machine, as its processes name them",
    "source/model.py": "Python files of this machine, checked before",
    "commands/explain/class_pages.py": "pages of nsadiag",
    "commands/listing.py": "modules of nsadiag",
    "commands/messages/github.py": "the summary of GitHub's own job, to add to it",
    "commands/faults.py": "scripts of nsadiag",
    "analysis/rules/catalogue.py": "modules of nsadiag",
    "commands/armed/environments.py": "what an interpreter answers, and the file by which nsadiag arms its environment",
    "commands/armed/watcher.py": "settings in the environment of this process",
    "commands/matrix/on_nodes.py": "the channel to other nodes",
    "commands/batch/node.py": "the token of the user's own job",
    "commands/nodes.py": "the channel to other nodes",
    "commands/run_on_nodes.py": "the channel to other nodes",
    "commands/matrix/running.py": "the lock of a matrix that this process runs",
    "commands/experiments/shrink.py": "the user's own script",
}


def reads_in(tree: ast.Module) -> set[str]:
    """Names of the reading calls in a module; a bare `read_text` is that of evidence/documents/files.py."""
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = {f.attr for f in called if isinstance(f, ast.Attribute)}
    return (names | {f.id for f in called if isinstance(f, ast.Name) and f.id == "open"}) & READS


def test_what_others_wrote_is_opened_by_one_function_alone() -> None:
    root = ROOT / "nsadiag"
    found = {
        path.relative_to(root).as_posix()
        for room in READING_ROOMS
        for path in (root / room).rglob("*.py")
        if reads_in(ast.parse(path.read_text()))
    }
    assert found == set(READS_ELSE)


@pytest.mark.parametrize(
    "source",
    ["open(x)", "p.open('rb')", "p.read_text()", "np.fromfile(x)", "json.load(f)", "shutil.copyfile(a, b)"],
)
def test_another_way_to_open_is_seen(source: str) -> None:
    assert reads_in(ast.parse(source))


# -- one way out for text ---------------------------------------------------------------------------

# Where text leaves for a reader: a name that makes it, and the only files that may use it. Types do the rest: what a
# reporter returns is made by a cleaner, and a `str` is none of these.
WAYS_OUT = {
    "print": {
        "printing.py",
        "agent/captures/gpu/nvml_query.py", "agent/checkup/gpu_trial.py", "commands/batch/serving.py",  # documents to the process that started them
        "agent/job/warm_rank.py", "engines/on_ray/files.py", "pytest_plugin.py",  # the job's own output
    },
    "Console": set(),
    "Shown": set(), "Commands": {"reports/cleaners/annotation.py"}, "Plain": {"reports/cleaners/plain.py"},
    "Json": {"reports/cleaners/data.py"}, "Xml": {"reports/cleaners/data.py"}, "Csv": {"reports/cleaners/data.py"},
    "Page": {"reports/cleaners/page.py"}, "Chat": {"reports/cleaners/chat.py"},
    "Markdown": {"reports/cleaners/markdown.py"}, "Markup": {"reports/formats/html.py"},
}  # fmt: skip
# Modules and classes of rich's, by whoever gives them to all others.
WORN = {
    "rich.console.Console": {"reports/terminal/screen.py", "reports/terminal/hanging.py"},
    "rich.text": {"reports/terminal/text.py", "reports/terminal/hanging.py"},
}
ROOMS_THAT_SHOW = ("agent", "cli", "cluster", "commands", "engines", "experiments", "integrations", "reports")


def ways_out(tree: ast.Module) -> set[str]:
    """Ways out that a module uses: calls of them with more than literals, as those are ours, and classes of rich's it imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in WAYS_OUT:
            literal = all(isinstance(each, ast.Constant) for each in node.args)
            found |= {node.func.id} if node.func.id in ("print", "Console") or not literal else set()
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            found |= names & set(WORN)
        if isinstance(node, ast.Attribute) and node.attr in ("print_exc", "print_exception"):
            found.add("print")
    return found


def test_what_is_shown_leaves_by_its_cleaner_alone() -> None:
    root = ROOT / "nsadiag"
    files = [*root.glob("*.py"), *(path for room in ROOMS_THAT_SHOW for path in (root / room).rglob("*.py"))]
    found = {
        (way, path.relative_to(root).as_posix())
        for path in files
        for way in ways_out(ast.parse(path.read_text()))
    }
    allowed = {(way, file) for way, files_ in {**WAYS_OUT, **WORN}.items() for file in files_}
    assert found == allowed, found ^ allowed


@pytest.mark.parametrize(
    ("source", "way"),
    [
        ("print(verdict.summary)", "print"),
        ("traceback.print_exc()", "print"),
        ("Markdown(f'**{verdict.fix}**')", "Markdown"),
        ("Markup(text)", "Markup"),
        ("Page(template.render())", "Page"),
        ("Console()", "Console"),
        ("from rich.console import Console", "rich.console.Console"),
        ("from rich.text import Text", "rich.text"),
    ],
)
def test_another_way_out_is_seen(source: str, way: str) -> None:
    assert ways_out(ast.parse(source)) == {way}
    assert ways_out(ast.parse("Markdown('**Fix:** {}').format(verdict.fix)")) == set()


# -- one reader of syntax trees ---------------------------------------------------------------------

# A rank asks which values a line reads, and the analysis who wrote them: both by one function.
READS_TREES = ("nsadiag.source", "nsadiag.experiments", "nsadiag.repair", "nsadiag.evidence.rehearsal.reads")


def test_syntax_trees_are_read_by_the_rooms_of_the_source_alone() -> None:
    files = sorted((ROOT / "nsadiag").rglob("*.py"))
    found = {a.module for path in files for a in arrows(path, ROOT) if a.target == "ast"}
    elsewhere = {module for module in found if not module.startswith(READS_TREES)}
    assert not elsewhere, (
        f"{elsewhere} import ast: put what reads code into nsadiag/source/patterns/, and call it from there"
    )


# -- the device driver is the job's to start ----------------------------------------------------------

STARTS_THE_DRIVER = re.compile(
    r"\bcuda\.(is_available|device_count|current_device|get_device\w*|init)\(|\baccelerator\."
)


def test_what_runs_inside_the_users_ranks_never_starts_the_device_driver() -> None:
    """A process in which it was started cannot fork children that use the device."""
    files = sorted((ROOT / "nsadiag" / "worker").rglob("*.py"))
    assert files
    assert not [str(path) for path in files if STARTS_THE_DRIVER.search(path.read_text())]
    assert STARTS_THE_DRIVER.search("if torch.cuda.is_available() and torch.cuda.is_initialized():")


# -- a signal handler of the job's may raise in any line of ours ----------------------------------------


def keeps_it(handler: ast.ExceptHandler) -> bool:
    """Whether it catches what a handler may raise, and neither raises nor asks whose exception it is."""
    kinds = {n.id for n in ast.walk(handler.type or ast.Name("BaseException")) if isinstance(n, ast.Name)}
    inside = [node for statement in handler.body for node in ast.walk(statement)]
    asked = {n.func.id for n in inside if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    lets_pass = asked & {"pass_on", "failed"} or any(isinstance(n, ast.Raise) for n in inside)
    return bool(kinds & {"OSError", "Exception", "BaseException"}) and not lets_pass


def test_what_runs_inside_the_users_ranks_keeps_no_exception_of_a_signal_handler() -> None:
    """They are raised by SIGALRM handlers to end what takes too long, and may be of any kind."""
    room = ROOT / "nsadiag" / "worker"
    keeping = []
    for path in sorted(room.rglob("*.py")):
        if "bootstrap" in path.parts:  # runs before the job does
            continue
        tree = ast.parse(path.read_text())
        keeping += [
            f"{path.name}:{n.lineno}"
            for n in ast.walk(tree)
            if isinstance(n, ast.ExceptHandler) and keeps_it(n)
        ]
        keeping += [
            f"{path.name}:{n.lineno}"
            for n in ast.walk(tree)
            if isinstance(n, ast.Attribute) and n.attr == "suppress"
        ]
    assert not keeping


@pytest.mark.parametrize(
    ("source", "keeps"),
    [
        ("try: f()\nexcept OSError: pass", True),
        ("try: f()\nexcept (ValueError, Exception) as e: g(e)", True),
        ("try: f()\nexcept: pass", True),
        ("try: f()\nexcept OSError as e: pass_on(e)", False),
        ("try: f()\nexcept Exception: raise", False),
        ("try: f()\nexcept KeyError: pass", False),
    ],
)
def test_a_handler_that_keeps_it_is_seen(source: str, keeps: bool) -> None:
    assert [keeps_it(n) for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ExceptHandler)] == [keeps]
