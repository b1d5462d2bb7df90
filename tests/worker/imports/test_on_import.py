"""Calls after an import: torch is asked for, found, imported and imported again in all the ways that libraries have."""

import ast
import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nsadiag
from nsadiag.worker.imports.on_import import when_imported

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap" / "sitecustomize.py"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that nobody has imported yet."""
    name = "asked_for_before_it_is_imported"
    (tmp_path / f"{name}.py").write_text("ready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return name


def test_asking_whether_a_module_is_there_does_not_use_up_the_call(module: str) -> None:
    # transformers, accelerate and lightning ask so before they import torch.
    called: list[bool] = []
    when_imported(module, lambda: called.append(sys.modules[module].ready))
    assert importlib.util.find_spec(module) is not None
    assert importlib.util.find_spec(module) is not None
    assert called == []
    importlib.import_module(module)
    assert called == [True]


def test_each_of_two_calls_comes_once_also_where_the_module_is_run_again(module: str) -> None:
    called: list[str] = []
    before = list(sys.meta_path)
    when_imported(module, lambda: called.append("first"))
    when_imported(module, lambda: called.append("second"))
    importlib.reload(importlib.import_module(module))
    assert sorted(called) == ["first", "second"]
    assert sys.meta_path == before


def test_a_module_that_is_not_there_is_still_not_there(module: str) -> None:
    when_imported(f"{module}_not", lambda: None)
    assert importlib.util.find_spec(f"{module}_not") is None


def test_the_loader_is_as_it_was_once_the_module_has_run(module: str) -> None:
    when_imported(module, lambda: None)
    when_imported(module, lambda: None)
    spec = importlib.import_module(module).__spec__
    assert spec is not None
    assert sorted(vars(spec.loader)) == ["name", "path"]


def test_the_bootstrap_is_written_in_what_the_oldest_python_understands() -> None:
    # Helpers of a job in Python 2.7 read it as well: an error of syntax would be on their stderr.
    source = BOOTSTRAP.read_text()
    nodes = list(ast.walk(ast.parse(source, feature_version=(3, 4))))
    assert not [
        n for n in nodes if isinstance(n, ast.AnnAssign | ast.JoinedStr | ast.Nonlocal | ast.AsyncFunctionDef)
    ]
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef)]
    assert not [
        n for n in functions if n.returns or n.args.kwonlyargs or any(a.annotation for a in n.args.args)
    ]
    imported = {n.module for n in ast.iter_child_nodes(ast.parse(source)) if isinstance(n, ast.ImportFrom)}
    assert not imported


def test_a_module_of_the_users_named_like_the_standard_librarys_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "shlex.py").write_text("mine = True\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import json, shlex, sys\nprint(hasattr(shlex, 'mine'), json.dumps([1]), 'nsadiag' in sys.modules)\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(BOOTSTRAP.parent),
        "NSADIAG_RUN_DIR": str(tmp_path / "run"),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True [1] True\n" and done.stderr == ""
    assert (tmp_path / "run" / "ranks" / "00000" / "blackbox.bin").exists()
