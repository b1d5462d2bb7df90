"""Run directories and dumps with one thing in them broken, as a disk, another version or a stranger would."""

from __future__ import annotations

import contextlib
import copy
import functools
import gzip
import json
import os
import pickle
import random
import shutil
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

OTHERS: tuple[Any, ...] = (
    None, [], {}, 0, -1, 2**31, 2**63, 10**400, 1e308, float("nan"), float("inf"), "x", "", True, [None], [[]], [{}],
    {"a": None}, ["x"], "\x1b[31m<script>\u202e", "9" * 5000, {"x": {"y": []}}, "../../../../etc/passwd", "\0", "\ud800",
)  # fmt: skip
MOST_PATHS = 3000
HEADER_BYTES, RECORD_BYTES = 4096, 64
LARGE = 8 << 30
MOST_TEXT = 1 << 18

Break = Callable[[random.Random, Path, Path], None]


def broken(rng: random.Random, run: Path, outside: Path) -> str:
    """Breaks one file or folder of the directory; says which, and how. `outside` is a file that nobody is to touch."""
    files = sorted(p for p in run.rglob("*") if p.is_file() and not p.name.startswith("report."))
    victim = rng.choice(files)
    kinds: list[tuple[str, Break]] = [*OF_ANY, *OF_THE_SYSTEM]
    kinds += OF_SUFFIX.get(victim.suffix, [])
    name, act = rng.choice(kinds)
    act(rng, victim, outside)
    return f"{victim.relative_to(run)}: {name}"


# -- any file -------------------------------------------------------------------------------------


def _cut(rng: random.Random, path: Path, outside: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def _flipped(rng: random.Random, path: Path, outside: Path) -> None:
    data = bytearray(path.read_bytes() or b"x")
    for _ in range(rng.choice((1, 4, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _noise(rng: random.Random, path: Path, outside: Path) -> None:
    path.write_bytes(rng.randbytes(rng.choice((0, 1, 100, 10_000))))


def _gone(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()


def _swapped(rng: random.Random, path: Path, outside: Path) -> None:
    other = rng.choice([p for p in path.parent.iterdir() if p.is_file()])
    ours, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(ours)


# -- what is no regular file, or lies elsewhere ---------------------------------------------------


def _pipe(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _socket(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()
    before = Path.cwd()
    os.chdir(path.parent)  # an address has room for 107 letters
    try:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(before)


def _linked(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()
    targets = (
        "/dev/zero",
        "/dev/null",
        "/dev/urandom",
        "/proc/self/environ",
        "/etc",
        path.name,
        str(outside),
    )
    path.symlink_to(rng.choice(targets))


def _folder(rng: random.Random, path: Path, outside: Path) -> None:
    path.unlink()
    path.mkdir()


def _sparse(rng: random.Random, path: Path, outside: Path) -> None:
    os.truncate(path, LARGE)


def _linked_folder(rng: random.Random, path: Path, outside: Path) -> None:
    folder = path.parent
    if (
        folder.is_symlink()
        or not (folder.parent / path.parent.name).is_dir()
        or folder.name.startswith("run")
    ):
        return _linked(rng, path, outside)
    elsewhere = outside.parent / folder.name
    shutil.rmtree(elsewhere, ignore_errors=True)
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    return None


def _odd_neighbours(rng: random.Random, path: Path, outside: Path) -> None:
    ranks = next((p for p in path.parents if p.name == "ranks"), path.parent)
    for name in rng.sample(
        ("99999999999999999999", "\u0663", "-1", "00000000", "1e3", "0x1", "999999999", "²"), 3
    ):
        (ranks / name).mkdir(exist_ok=True)


@functools.cache
def bomb() -> bytes:
    """64 MiB of blanks, in 64 KiB."""
    return gzip.compress(b" " * (64 << 20), 9)


def _bomb(rng: random.Random, path: Path, outside: Path) -> None:
    root = next((p.parent for p in path.parents if p.name in ("ranks", "nodes", "sources")), path.parent)
    node = root / "nodes" / "node0"
    node.mkdir(parents=True, exist_ok=True)
    (node / "digest-99.json.gz").write_bytes(
        rng.choice((bomb(), bomb()[:-9], gzip.compress(b"[]"), gzip.compress(b"{}")))
    )


# -- JSON -----------------------------------------------------------------------------------------


def with_a_node_broken(rng: random.Random, value: Any) -> Any:
    """One value in the tree replaced, taken away or repeated."""
    found: list[tuple[Any, Any]] = []
    pending = [value]
    while pending and len(found) < MOST_PATHS:
        owner = pending.pop()
        keys = (
            list(owner) if isinstance(owner, dict) else range(len(owner)) if isinstance(owner, list) else ()
        )
        found += [(owner, key) for key in keys]
        pending += [owner[key] for key in keys]
    if not found or rng.random() < 0.03:
        return copy.deepcopy(rng.choice(OTHERS))
    owner, key = rng.choice(found)
    if rng.random() < 0.25 and isinstance(owner, dict):
        owner.pop(key)
    elif rng.random() < 0.1 and isinstance(owner, list):
        owner.extend([owner[key]] * 2000)
    else:
        owner[key] = copy.deepcopy(rng.choice(OTHERS))
    return value


def _tree(rng: random.Random, path: Path, outside: Path) -> None:
    with contextlib.suppress(ValueError):
        value = json.loads(path.read_bytes())
        for _ in range(rng.choice((1, 1, 3, 20))):
            value = with_a_node_broken(rng, value)
        path.write_text(json.dumps(value))


def _other(rng: random.Random, path: Path, outside: Path) -> None:
    path.write_text(json.dumps(copy.deepcopy(rng.choice(OTHERS))))


def _deep(rng: random.Random, path: Path, outside: Path) -> None:
    depth = rng.choice((90, 400, 900, 100_000))
    begin, end = rng.choice((("[", "]"), ('{"cause": ', "}"), ('[{"frames": ', "}]")))
    path.write_text(begin * depth + "1" + end * depth)


def _line(rng: random.Random, path: Path, outside: Path) -> None:
    lines = path.read_bytes().decode(errors="replace").splitlines() or ["{}"]
    for _ in range(rng.choice((1, 1, 5))):
        at = rng.randrange(len(lines))
        with contextlib.suppress(ValueError):
            lines[at] = json.dumps(with_a_node_broken(rng, json.loads(lines[at])))
    if rng.random() < 0.2:
        lines.insert(rng.randrange(len(lines)), json.dumps(copy.deepcopy(rng.choice(OTHERS))))
    path.write_text("\n".join(lines) + "\n")


def _long_line(rng: random.Random, path: Path, outside: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"id": 1, "name": "' + b"a" * 5_000_000 + b'"}\n' + b"\0" * 5000)


# -- rings and pickles ----------------------------------------------------------------------------


def _header(rng: random.Random, path: Path, outside: Path) -> None:
    data = bytearray(path.read_bytes().ljust(HEADER_BYTES, b"\0"))
    struct.pack_into(
        "<I", data, rng.choice((8, 12, 16, 20, 24, 28, 32, 36, 44)), rng.choice((0, 1, 3, 2**31, 2**32 - 1))
    )
    path.write_bytes(data)


def _records(rng: random.Random, path: Path, outside: Path) -> None:
    data = bytearray(path.read_bytes())
    slots = (len(data) - HEADER_BYTES) // RECORD_BYTES
    for _ in range(rng.choice((1, 50, 2000)) if slots > 0 else 0):
        slot = rng.randrange(slots)
        numbers = (0, -1, 1, 3, 2**31, 2**62, -(2**63), 2**63 - 1)
        body = (
            slot + 1, rng.choice((*numbers, rng.getrandbits(62))), rng.choice((0, 1, 5, 2**32 - 1)), rng.getrandbits(32),
            rng.randrange(60), rng.randrange(6), 0, rng.choice((0, 1, 2**32 - 1)), *(rng.choice(numbers) for _ in range(3)),
            slot + 1,
        )  # fmt: skip
        struct.pack_into("<QqIIBBHIqqqQ", data, HEADER_BYTES + slot * RECORD_BYTES, *body)
    path.write_bytes(data)


def _pickled(rng: random.Random, path: Path, outside: Path) -> None:
    with contextlib.suppress(Exception):
        value = pickle.loads(path.read_bytes())
        path.write_bytes(pickle.dumps(with_a_node_broken(rng, value)))


def _many_containers(rng: random.Random, path: Path, outside: Path) -> None:
    path.write_bytes(b"\x80\x04](" + b"}" * (20 << 20) + b"e.")


def _words(rng: random.Random, path: Path, outside: Path) -> None:
    """Numbers and lines of a text replaced."""
    lines = path.read_text(errors="replace").splitlines() or [""]
    at = rng.randrange(len(lines))
    odd = (
        "9" * 5000,
        "\u0663",
        "-1",
        "\x1b]0;x\x07",
        "\u202e",
        "0x" + "f" * 40,
        '"',
        "(",
        "%s",
        "rank" + "1" * 300,
    )
    lines[at] = rng.choice(
        (rng.choice(odd), lines[at] + rng.choice(odd), rng.choice(odd) + lines[at], lines[at] * 50)
    )
    for _ in range(rng.choice((0, 3))):
        where = rng.randrange(len(lines))
        lines[where] = "".join(
            rng.choice(odd) if c.isdigit() and rng.random() < 0.3 else c for c in lines[where][:500]
        )
    path.write_text("\n".join(lines), errors="replace")


def _shape(rng: random.Random, path: Path, outside: Path) -> None:
    """The lines of a text in another order, thirty times, in one line, or very wide; or a piece of it again and again."""
    data = path.read_bytes()[:MOST_TEXT]
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(data) + 1)
    piece = data[at : at + rng.choice((1, 200))]
    path.write_bytes(
        rng.choice(
            (
                b"".join(rng.sample(lines, len(lines))),
                data * 30,
                data.replace(b"\n", b""),
                data.replace(b" ", b"\n"),
                data.replace(b" ", b" " * 200),
                data[:at] + piece * 5000 + data[at:],
            )
        )
    )


OF_ANY: list[tuple[str, Break]] = [
    ("cut", _cut), ("flipped", _flipped), ("noise", _noise), ("gone", _gone), ("swapped", _swapped),
]  # fmt: skip
OF_THE_SYSTEM: list[tuple[str, Break]] = [
    ("a pipe", _pipe), ("a socket", _socket), ("a link", _linked), ("a folder", _folder), ("8 GiB", _sparse),
    ("its folder is a link", _linked_folder), ("odd neighbours", _odd_neighbours), ("a bomb", _bomb),
]  # fmt: skip
OF_SUFFIX: dict[str, list[tuple[str, Break]]] = {
    ".json": [("a value", _tree)] * 20 + [("another type", _other)] * 6 + [("deep", _deep)] * 2,
    ".jsonl": [("a row", _line)] * 20
    + [("its words", _words)] * 4
    + [("its shape", _shape)] * 2
    + [("a long row", _long_line)],
    ".bin": [("its header", _header)] * 6 + [("its records", _records)] * 12,
    ".pickle": [("a value", _pickled)] * 12 + [("many containers", _many_containers)],
    ".txt": [("its words", _words)] * 12 + [("its shape", _shape)] * 6,
    ".log": [("its words", _words)] * 12 + [("its shape", _shape)] * 6,
}


@contextlib.contextmanager
def restored(run: Path, whole: Path) -> Iterator[None]:
    """The directory as it is in `whole`, before and after."""
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    try:
        yield
    finally:
        if run.is_symlink():
            run.unlink()
        shutil.rmtree(run, ignore_errors=True)
