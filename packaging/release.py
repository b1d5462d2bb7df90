"""Builds wheel and sdist so that anyone gets the same bytes, tries the wheel where nothing else is, and writes the notes: `python packaging/release.py [--torch 2.6.0,2.13.0]`.

Nothing is uploaded, and no file of the repository changes. Exit code 1 where a check fails.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EPOCH_WITHOUT_GIT = "1700000000"
SECTION = re.compile(r"^## \[?([\d.]+)\]?.*\n", re.MULTILINE)
# What a person types first, and what of it has to be in the answer.
TRIED = (
    (("--version",), "nsadiag "),
    (("list",), "missing_rank"),
    (("explain", "missing_rank"), "missing_rank"),
    (("list", "--faults"), "local_lock_deadlock"),
)
TORCH_TRIED = (("demo",), "local_lock_deadlock")  # ends with 1: it hangs on purpose


def epoch() -> str:
    """The time of the commit, which all files in the archives get."""
    asked = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() or EPOCH_WITHOUT_GIT


def build(into: Path) -> list[Path]:
    """The sdist, and the wheel."""
    line = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(into)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch()}
    subprocess.run(line, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    return sorted(path for path in into.iterdir() if path.name.endswith((".whl", ".tar.gz")))


def differing(first: Sequence[Path], second: Sequence[Path]) -> Iterator[str]:
    """Archives of two builds that are not the same."""
    for a, b in zip(first, second, strict=True):
        if digest(a) != digest(b):
            yield f"{a.name} differs from build to build"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def without_license(archives: Sequence[Path]) -> Iterator[str]:
    """Archives that do not carry the license as it stands here."""
    ours = (ROOT / "LICENSE").read_bytes()
    for path in archives:
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                texts = [wheel.read(name) for name in wheel.namelist() if name.endswith("/LICENSE")]
        else:
            with tarfile.open(path) as sdist:
                found = (sdist.extractfile(m) for m in sdist if m.name.endswith("/LICENSE"))
                texts = [file.read() for file in found if file]
        if ours not in texts:
            yield f"{path.name} has no LICENSE, or another one"


def notes(version: str, archives: Sequence[Path]) -> str:
    """The changelog's section of this version, or what the fragments will make of it; and the digests.

    Raises CalledProcessError where towncrier is not installed or refuses a fragment.
    """
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    said = SECTION.split(text)
    found = dict(zip(said[1::2], said[2::2], strict=True))
    if any(path.name != "README.md" for path in (ROOT / "changes").glob("*.md")) or version not in found:
        asked = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", version]
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True)
        body = "\n".join(line for line in done.stdout.splitlines() if not line.startswith("## "))
    else:
        body = found[version]
    sums = "\n".join(f"{digest(path)}  {path.name}" for path in archives)
    return f"# nsadiag {version}\n\n{body.strip()}\n\n```\n{sums}\n```\n"


def try_wheel(wheel: Path, torch: str | None) -> Iterator[str]:
    """What fails in an environment that has nothing but the wheel, its needs and, if asked for, that torch."""
    with tempfile.TemporaryDirectory(prefix="nsadiag-release-") as folder:
        home = Path(folder)
        venv.create(home / "env", with_pip=True)
        needs = [str(wheel), *([f"torch=={torch}", "numpy"] if torch else [])]
        pip = [str(home / "env/bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *needs], check=True)
        clean = {"PATH": f"{home / 'env/bin'}:/usr/bin:/bin", "HOME": folder, "COLUMNS": "200"}
        for words, said in (*TRIED, *((TORCH_TRIED,) if torch else ())):
            line = [str(home / "env/bin/nsadiag"), *words]
            done = subprocess.run(line, cwd=home, env=clean, capture_output=True, text=True, check=False)
            wanted = 1 if words == TORCH_TRIED[0] else 0
            if done.returncode != wanted or said not in done.stdout:
                where = f" with torch {torch}" if torch else ""
                yield f"nsadiag {' '.join(words)}{where}: exit code {done.returncode}: {done.stderr[-400:]}"


def main() -> int:
    """Builds twice, checks, and leaves the archives in --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "release")
    parser.add_argument(
        "--torch", default="", help="versions with commas, each tried in an environment of its own"
    )
    parser.add_argument("--no-install", action="store_true", help="build and compare alone")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for old in given.out.iterdir():
        old.unlink()
    archives = build(given.out)
    with tempfile.TemporaryDirectory() as again:
        faults = [*differing(archives, build(Path(again))), *without_license(archives)]
    (wheel,) = (path for path in archives if path.suffix == ".whl")
    if not given.no_install:
        for torch in (None, *filter(None, given.torch.split(","))):
            found = list(try_wheel(wheel, torch))
            print(
                f"{'without torch' if torch is None else f'torch {torch}'}: {len(found)} faults", flush=True
            )
            faults += found
    given.out.joinpath("NOTES.md").write_text(notes(wheel.name.split("-")[1], archives), encoding="utf-8")
    for path in archives:
        print(f"{digest(path)}  {path}")
    for fault in faults:
        print(f"error: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
