"""The user's own source files, kept beside the evidence that names their lines: they may change, or stay behind.

Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from nsadiag.evidence.layout import (
    RunDir,
    make_private_dir,
    read_json,
    read_json_lines,
    write_json,
    write_private,
)
from nsadiag.evidence.secrets import MASK, mask_text

# Installed packages, the standard library, and what of ours runs in a rank: a checkout of it is no installed package.
NOT_USER = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<|/nsadiag/(worker|agent|evidence)/")
MOST_FILES = 64
MOST_BYTES = 512 * 1024
# A literal that is given to a name like `api_key`; what stays is still Python.
LITERAL = re.compile(
    r"""(\b\w*(?:key|token|secret|passw|credential)\w*["']?\s*[=:]\s*[rbfRBF]?)(["'])[^"'\n]{8,}\2""",
    re.IGNORECASE,
)
PLACE = re.compile(r"(?P<file>/[^\t:]+\.py):\d+:")


def is_user(file: str) -> bool:
    """Whether a frame's file is the user's own code."""
    return bool(file) and NOT_USER.search(file) is None


def keep_sources(run: RunDir) -> None:
    """Copies the user files that stacks, exceptions and black boxes name, and what those import of their neighbours.

    Secrets are masked as everywhere. What is there already stays: it is closer to what the job ran.
    """
    index: dict[str, str] = read_json(run.sources_index, {})
    wanted = [*dict.fromkeys(_named(run))]
    while wanted and len(index) < MOST_FILES:
        file = wanted.pop(0)
        if file in index or not is_user(file):
            continue
        text = _text(Path(file))
        if text is None:
            continue
        name = f"{len(index):02d}-{Path(file).name}"
        make_private_dir(run.sources)
        write_private(run.sources / name, LITERAL.sub(rf"\1\2{MASK}\2", mask_text(text)))
        index[file] = name
        wanted.extend(_neighbours(Path(file), text))
    if index:
        write_json(run.sources_index, index)


def read_sources(run: RunDir) -> dict[str, str]:
    """Text by the path that frames name. Never raises on what is missing."""
    index = read_json(run.sources_index, {})
    found = {}
    for file, name in index.items() if isinstance(index, dict) else ():
        with contextlib.suppress(OSError, TypeError, ValueError):
            # A name that leads elsewhere is not ours.
            found[str(file)] = (run.sources / Path(str(name)).name).read_text(errors="replace")
    return found


def _named(run: RunDir) -> Iterator[str]:
    for rank in run.ranks():
        yield from _frames([read_json(rank.exception, {}), *read_json_lines(rank.raised)], "file")
        for capture in rank.captures():
            for each in (capture, *capture.children()):
                threads = read_json(each.py_spy, [])
                yield from _frames(threads if isinstance(threads, list) else [], "filename")
        yield from _in_names(read_json_lines(rank.names))
        for sample in read_json_lines(rank.samples):
            frames = sample.get("frames", []) if isinstance(sample, dict) else []
            yield from (str(frame[0]) for frame in frames if frame)


def _frames(threads: Iterable[object], key: str) -> Iterator[str]:
    for thread in threads:
        frames = thread.get("frames", []) if isinstance(thread, dict) else []
        yield from (str(frame[key]) for frame in frames if isinstance(frame, dict) and frame.get(key))


def _in_names(rows: Iterable[object]) -> Iterator[str]:
    for row in rows:
        if isinstance(row, dict):
            yield from (match["file"] for match in PLACE.finditer(str(row.get("name"))))


def _text(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace") if file.stat().st_size <= MOST_BYTES else None
    except OSError:
        return None


def _neighbours(file: Path, text: str) -> Iterator[str]:
    """Modules beside it, or below its package's parents, that it imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            yield from _module(file, name)


def _module(file: Path, name: str) -> Iterator[str]:
    parts = name.split(".")
    for folder in list(file.parents)[:4]:
        for candidate in (folder.joinpath(*parts).with_suffix(".py"), folder.joinpath(*parts, "__init__.py")):
            if candidate.is_file():
                yield str(candidate)
                return
