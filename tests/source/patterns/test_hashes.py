"""Programs that one hash salt could hide a fault of, and those that cannot see their salt."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsadiag.source.patterns.hashes import depends_on_salt


def depends(tmp_path: Path, text: str, **modules: str) -> bool:
    for name, source in modules.items():
        (tmp_path / f"{name}.py").write_text(source)
    script = tmp_path / "train.py"
    script.write_text(text)
    return depends_on_salt(script)


@pytest.mark.parametrize(
    "text",
    [
        "for name in set(names): reduce(name)",
        "for name in {'a', 'b'}: reduce(name)",
        "for name in {n.lower() for n in names}: reduce(name)",
        "for name in mine.keys() - yours.keys(): reduce(name)",
        "shard = hash(path) % world",
        "names.sort(key=id)",
        "import importlib\nimportlib.import_module(plugin)",
        "import lightning",
        "from accelerate import Accelerator",
        "def broken(:",
    ],
)
def test_what_orders_by_hash_or_is_not_known_needs_another_salt(tmp_path: Path, text: str) -> None:
    assert depends(tmp_path, text)


def test_what_uses_nothing_of_that_does_not(tmp_path: Path) -> None:
    text = "import os\nimport torch.distributed as dist\nfrom numpy import random\nfor name in {'a': 1}: event.set()"
    assert not depends(tmp_path, text)


def test_modules_beside_the_script_are_read_as_well(tmp_path: Path) -> None:
    assert not depends(tmp_path, "import tools", tools="import json")
    assert depends(tmp_path, "from tools import order", tools="import more", more="order = list(set('ab'))")


def test_a_script_that_is_not_there_is_not_known(tmp_path: Path) -> None:
    assert depends_on_salt(tmp_path / "nowhere.py")
