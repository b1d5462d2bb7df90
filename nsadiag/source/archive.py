"""Copies of the user's source files, kept beside the evidence that names their lines.

Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from nsadiag.evidence.documents.files import read_text
from nsadiag.evidence.layout import (
    RunDir,
    make_private_dir,
    read_json,
    read_json_lines,
    write_json,
    write_private,
)
from nsadiag.evidence.ring.header import read_names
from nsadiag.evidence.secrets.masking import mask_text
from nsadiag.evidence.secrets.published import MASK
from nsadiag.evidence.stacks import stacks_in
from nsadiag.evidence.user_code import counted, is_user, roots_in
from nsadiag.source.syntax import parse

MOST_FILES = 64
MOST_BYTES = 512 * 1024
# A literal that is given to a name like `api_key`; what stays is still Python.
LITERAL = re.compile(
    r"""(\b\w*(?:key|token|secret|passw|credential)\w*["']?\s*[=:]\s*[rbfRBF]?)(["'])[^"'\n]{8,}\2""",
    re.IGNORECASE,
)
PLACE = re.compile(r"(?P<file>/[^\t:]+\.py):\d+:")


def keep_sources(run: RunDir) -> None:
    """Copies the user files that stacks, exceptions and recordings name, and what those import of their neighbours.

    Secrets are masked as everywhere. What is there already stays: it is closer to what the job ran.
    """
    with counted(root for rank in run.ranks() for root in roots_in(read_json(rank.meta))):
        _keep(run)


def _keep(run: RunDir) -> None:
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
        write_private(run.sources / name, masked(text))
        index[file] = name
        wanted.extend(neighbours(Path(file), text))
    if index:
        write_json(run.sources_index, index)


def masked(text: str) -> str:
    """A source as it is kept: without what a secret may be."""
    return LITERAL.sub(rf"\1\2{MASK}\2", mask_text(text))


def read_sources(run: RunDir) -> dict[str, str]:
    """Text by the path that frames name. Never raises on what is missing."""
    found = {}
    for file, name in itertools.islice(kept_names(run).items(), MOST_FILES):
        with contextlib.suppress(OSError, ValueError):
            found[file] = read_text(run.sources / name)
    return found


def kept_names(run: RunDir) -> dict[str, str]:
    """The copies in `sources/`, by the path that frames name."""
    # A name that leads elsewhere is not ours.
    return {file: Path(name).name for file, name in read_json(run.sources_index, {}).items()}


def _named(run: RunDir) -> Iterator[str]:
    for rank in run.ranks():
        for raised in (read_json(rank.exception, {}), *read_json_lines(rank.raised)):
            yield from (frame["file"] for frame in raised.get("frames", ()) if frame["file"])
        for capture in rank.captures():
            for each in (capture, *capture.children()):
                yield from (f.filename for t in stacks_in(each) for f in t.frames if f.filename)
        for name in read_names(rank.blackbox).values():
            yield from (match["file"] for match in PLACE.finditer(name))
        for sample in read_json_lines(rank.samples):
            yield from (frame[0] for frame in sample["frames"])


def is_source(file: str) -> bool:
    """Whether it is a Python file of this machine: evidence from elsewhere may name any, and what it names is shown."""
    try:
        seen = Path(file).stat() if file.startswith("/") and file.endswith(".py") else None
    except (OSError, ValueError):
        return False
    return seen is not None and stat.S_ISREG(seen.st_mode) and seen.st_size <= MOST_BYTES


def _text(file: Path) -> str | None:
    try:
        seen = file.stat()
        whole = stat.S_ISREG(seen.st_mode) and seen.st_size <= MOST_BYTES
        return file.read_text(errors="replace") if whole else None
    except (OSError, ValueError):
        return None


def neighbours(file: Path, text: str) -> Iterator[str]:
    """Modules beside it, or below its package's parents, that it imports."""
    try:
        tree = parse(text)
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
