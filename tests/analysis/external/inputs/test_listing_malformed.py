"""Sixty inputs as people have them, malformed and mixed: each is answered, or refused with the reason, and nothing else happens."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from dump_maker import Job, write_dumps
from support.jobs import Jobs

from nsadiag.errors import NsadiagError
from nsadiag.evidence.records import Verdict
from nsadiag.reports.load import load_collected

RAISED = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/job/train.py", line 71, in <module>
[rank1]:     train()
[rank1]:   File "/job/train.py", line 52, in train
[rank1]:     raise ValueError("bad batch")
[rank1]: ValueError: bad batch
"""
LATIN = RAISED.replace("bad batch", "schlechter Stoß")
STEPS = "".join(f"[rank{n % 2}]: step {n // 2} loss 0.{n}\n" for n in range(200))
JOB = STEPS + RAISED + "[rank0]: waiting\n"
PY_SPY = """Process {pid}: /venv/bin/python -u train.py{more}
Python v3.12.3 (/usr/bin/python3.12)

Thread {pid} (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    train (train.py:52)
    <module> (train.py:71)
"""
ERROR_JSON = json.dumps(
    {
        "message": {
            "message": "ValueError: bad batch",
            "extraInfo": {"py_callstack": RAISED.replace("[rank1]: ", ""), "timestamp": "1795867540"},
        }
    }
)


def tar(members: dict[str, bytes], mode: str = "w:gz", **kinds: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name, kind in kinds.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    return out.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def encrypted() -> bytes:
    """As zip -e marks it: the first bit of the flags, in both headers."""
    whole = bytearray(zipped({"job.log": JOB.encode()}, zipfile.ZIP_STORED))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        whole[whole.index(mark) + at] |= 1
    return bytes(whole)


def zstd(content: bytes) -> bytes:
    """One frame with one block that is not compressed."""
    size, block = len(content) - 256, len(content) << 3 | 1
    return b"\x28\xb5\x2f\xfd\x60" + size.to_bytes(2, "little") + block.to_bytes(3, "little") + content


GZ = gzip.compress(JOB.encode())
PLAIN = JOB.encode()
BOMB = gzip.compress(b"\0" * 30_000_000)
# By name: what the file holds, its name, and what the answer says: a class, or words of the reason.
FILES: dict[str, tuple[bytes, str, str]] = {
    "plain": (PLAIN, "job.log", "rank_exception"),
    "no name to speak of": (PLAIN, "x", "rank_exception"),
    "utf-8 with a mark": (b"\xef\xbb\xbf" + PLAIN, "job.log", "rank_exception"),
    "utf-16 with a mark": (JOB.encode("utf-16"), "job.log", "rank_exception"),
    "utf-16 without": (JOB.encode("utf-16-le"), "job.log", "rank_exception"),
    "utf-16, big end first": (b"\xfe\xff" + JOB.encode("utf-16-be"), "job.log", "rank_exception"),
    "utf-16 cut in a character": (JOB.encode("utf-16")[:-1], "job.log", "rank_exception"),
    "latin-1": (LATIN.encode("latin-1"), "job.log", "rank_exception"),
    "utf-8 and latin-1": (LATIN.encode() + b"\n" + "Stoß\n".encode("latin-1"), "job.log", "rank_exception"),
    "crlf": (JOB.replace("\n", "\r\n").encode(), "job.log", "rank_exception"),
    "crlf and lf": (STEPS.replace("\n", "\r\n").encode() + RAISED.encode(), "job.log", "rank_exception"),
    "progress bar": (b"\r".join(b"%3d%%|####  |" % n for n in range(100)) + b"\n" + PLAIN, "job.log", "rank_exception"),
    "progress bar in front of the error": (b"12%|##|\r13%|##|\r" + RAISED.encode(), "job.log", "rank_exception"),
    "zero bytes within": (PLAIN.replace(b"loss", b"lo\0ss"), "job.log", "rank_exception"),
    "a hole before, as of a rotated log": (b"\0" * 40_000 + PLAIN, "job.log", "rank_exception"),
    "a hole behind, as of a full disk": (PLAIN + b"\0" * 40_000, "job.log", "rank_exception"),
    "first line cut": (PLAIN[7:], "job.log", "rank_exception"),
    "last line cut": (PLAIN[:-9], "job.log", "rank_exception"),
    "no newline at the end": (RAISED.encode().rstrip(), "job.log", "rank_exception"),
    "escapes": (b"\x1b[31m" + RAISED.replace("\n", "\x1b[0m\n\x1b[31m").encode(), "job.log", "rank_exception"),
    "a line of a megabyte": (b"x" * 2_000_000 + b"\n" + PLAIN, "job.log", "rank_exception"),
    "a megabyte without a line": (b"x" * 2_000_000, "job.log", "1 log without"),
    "a number of a million digits": (b"rank " + b"9" * 1_000_000 + b"\n" + PLAIN, "job.log", "rank_exception"),
    "gzip": (GZ, "job.log.gz", "rank_exception"),
    "gzip by another name": (GZ, "job.log", "rank_exception"),
    "two gzips in a row": (gzip.compress(STEPS.encode()) + gzip.compress(RAISED.encode()), "job.gz", "rank_exception"),
    "gzip cut": (gzip.compress(JOB.encode() + os.urandom(40_000).hex().encode())[:-20_000], "job.gz", "rank_exception"),
    "gzip cut in its header": (GZ[:5], "job.gz", "cut off"),
    "gzip of nothing": (gzip.compress(b""), "job.gz", "empty"),
    "gzip with garbage behind": (GZ + b"garbage", "job.gz", "rank_exception"),
    "gzip damaged": (GZ[:40] + b"\xff\xff\xff" + GZ[43:], "job.gz", "damaged"),
    "a bomb": (BOMB, "job.gz", "zero bytes"),
    "bzip2": (bz2.compress(PLAIN), "job.log.bz2", "rank_exception"),
    "bzip2 cut": (bz2.compress(PLAIN)[:-20], "job.log.bz2", "cut off"),
    "xz": (lzma.compress(PLAIN), "job.log.xz", "rank_exception"),
    "xz cut": (lzma.compress(PLAIN)[:-40], "job.log.xz", "rank_exception"),
    "zstd": (zstd(PLAIN), "job.log.zst", "rank_exception" if find_spec("zstandard") else "pip install zstandard"),
    "zip": (zipped({"a/job.log": PLAIN}), "logs.zip", "rank_exception"),
    "zip without its end": (zipped({"a/job.log": PLAIN})[:-30], "logs.zip", "its directory stands at the end"),
    "zip with a password": (encrypted(), "logs.zip", "encrypted"),
    "zip of nothing": (zipped({}), "logs.zip", "nothing in"),
    "a checkpoint": (zipped({"archive/data.pkl": b"\x80\x02", "archive/data/0": b"\1"}), "model.pt", "checkpoint"),
    "tar": (tar({"job.log": PLAIN}, "w:"), "logs.tar", "rank_exception"),
    "tar.gz": (tar({"node0/job.log": PLAIN}), "logs.tar.gz", "rank_exception"),
    "tar.xz by another name": (tar({"job.log": PLAIN}, "w:xz"), "evidence", "rank_exception"),
    "tar.gz cut": (tar({"job.log": PLAIN, "z": os.urandom(90_000)})[:-40_000], "logs.tgz", "rank_exception"),
    "tar with ways out": (tar({"../../x": PLAIN, "/etc/y": PLAIN}), "logs.tgz", "leads out of the archive"),
    "tar with links": (tar({}, a=tarfile.SYMTYPE, b=tarfile.LNKTYPE, c=tarfile.CHRTYPE), "l.tgz", "link or device"),
    "a gzip in a tar": (tar({"job.log.gz": GZ}, "w:"), "logs.tar", "rank_exception"),
    "a tar in a zip": (zipped({"logs.tar.gz": tar({"job.log": PLAIN})}), "logs.zip", "rank_exception"),
    "five zips in each other": (zipped({"a.zip": zipped({"b.zip": zipped({"c.zip": zipped({"d.zip": zipped({"x": PLAIN})})})})}), "logs.zip", "archives deep"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4" + os.urandom(100), "logs.7z", "7z x"),
    "rar": (b"Rar!\x1a\x07\1\0" + os.urandom(100), "logs.rar", "unrar"),
    "nothing": (b"", "job.log", "empty"),
    "blanks": (b" \n\n\t\n" * 100, "job.log", "nothing but blanks"),
    "an executable": (b"\x7fELF\2\1\1\0" + os.urandom(20_000), "python", "binary"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + os.urandom(20_000), "loss.png", "binary"),
    "a pickle of something else": (pickle.dumps({"a": 1}), "trace_0", "refused"),
    "a pickle that runs something": (b"cos\nsystem\n(S'touch /tmp/x'\ntR.", "trace_0", "refused"),
    "half a pickle": (pickle.dumps({"entries": [{"a": "b" * 5000}] * 9})[:300], "trace_0", "refused"),
    "JSON of something else": (b'{"learning_rate": 0.1}', "config.json", "1 log without"),
    "half a JSON dump": (b'{"version": "2.5", "entries": [{"collective_seq_id": 1, "prof', "fr_0.json", "refused"),
    "stacks without a rank": (PY_SPY.format(pid=4711, more="").encode(), "spy.txt", "unknown"),
    "stacks as UTF-16": (PY_SPY.format(pid=4711, more="").encode("utf-16"), "spy.txt", "unknown"),
    "stacks with CRLF": (PY_SPY.format(pid=4711, more="").replace("\n", "\r\n").encode(), "spy.txt", "unknown"),
    "torchrun's error file": (ERROR_JSON.encode(), "rank_1_error.json", "rank_exception"),
    "a log of a job that went well": (STEPS.encode(), "job.log", "1 log without"),
}  # fmt: skip


def answer(*paths: Path) -> tuple[str, Verdict | None]:
    """The class and the verdict, or the reason for which there is none."""
    try:
        verdict = load_collected(*paths).verdict
    except NsadiagError as error:
        return error.message, None
    assert verdict is not None
    return verdict.cls, verdict


def test_there_are_sixty_of_them() -> None:
    assert len(FILES) >= 60


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_answered_or_refused_with_the_reason(tmp_path: Path, name: str) -> None:
    content, file, wanted = FILES[name]
    (tmp_path / file).write_bytes(content)
    said, verdict = answer(tmp_path / file)
    assert wanted in said
    assert "\n" not in said
    assert verdict is not None or file in said
    if wanted == "rank_exception" and verdict is not None and "error.json" not in file:
        place = verdict.where
        assert place is not None and (place.file, place.line) == ("/job/train.py", 52)
        number = int(verdict.evidence[0].source.partition("#line ")[2])
        assert b"Traceback" in whole(content, file).split(b"\n")[number - 1]


def whole(content: bytes, file: str) -> bytes:
    """The text in a file without names; of an archive that of its log."""
    if content.startswith(b"\x1f\x8b"):
        text = b""
        try:
            unpacked = gzip.GzipFile(fileobj=io.BytesIO(content))
            while chunk := unpacked.read1(4096):
                text += chunk
        except (EOFError, OSError):
            pass
        content = text
    elif content.startswith(b"\x28\xb5\x2f\xfd"):
        content = content[10:]
    elif content[:3] == b"BZh":
        content = bz2.decompress(content)
    elif content[:6] == b"\xfd7zXZ\0":
        content = lzma.LZMADecompressor().decompress(content)
    if content[:4] == b"PK\3\4" or content[257:262] == b"ustar":
        return PLAIN
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"[\0", "utf-16-le")):
        if content.startswith(mark):
            return content.decode(encoding, "replace").encode()
    return content


def test_a_cut_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "job.gz").write_bytes(FILES["gzip cut"][0])
    _, verdict = answer(tmp_path / "job.gz")
    assert verdict is not None
    assert "job.gz: cut off: what stands before the cut was read" in verdict.gaps


def test_nothing_of_an_archive_is_written_outside_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "logs.tgz").write_bytes(FILES["tar with ways out"][0])
    before = {*tmp_path.iterdir(), *tmp_path.parent.iterdir(), *tmp_path.parent.parent.iterdir()}
    answer(tmp_path / "logs.tgz")
    assert {*tmp_path.iterdir(), *tmp_path.parent.iterdir(), *tmp_path.parent.parent.iterdir()} == before


def test_files_that_are_nothing_cost_the_others_nothing(tmp_path: Path) -> None:
    for name, (content, file, _) in FILES.items():
        if name in ("nothing", "7z", "a picture", "zip with a password", "half a pickle"):
            (tmp_path / file).write_bytes(content)
    (tmp_path / "train.log").write_bytes(PLAIN)
    said, verdict = answer(tmp_path)
    assert said == "rank_exception" and verdict is not None
    for file in (
        "job.log: empty",
        "logs.7z: a 7z archive",
        "loss.png: binary",
        "logs.zip",
        "trace_0: refused",
    ):
        assert any(file in gap for gap in verdict.gaps), file


def test_dumps_that_a_shell_lists_are_judged_as_their_folder_is(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(ranks=8, fault="missing", culprit=3))
    by_folder, by_names = answer(tmp_path), answer(*sorted(tmp_path.glob("*")))
    assert by_folder[0] == by_names[0] == "missing_rank"
    assert by_folder[1] is not None and by_names[1] is not None
    assert by_folder[1].evidence == by_names[1].evidence


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_dumps_are_judged_as_they_are_without(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    write_dumps(tmp_path / "a", Job(ranks=4, fault="missing", culprit=3))
    (tmp_path / "b").mkdir()
    suffix = {gzip.compress: "gz", bz2.compress: "bz2"}.get(pack, "xz")
    for file in (tmp_path / "a").iterdir():
        (tmp_path / "b" / f"{file.name}.{suffix}").write_bytes(pack(file.read_bytes()))
    first, second = answer(tmp_path / "a")[1], answer(tmp_path / "b")[1]
    assert first is not None and second is not None
    assert (first.cls, first.guilty_ranks) == (second.cls, second.guilty_ranks) == ("missing_rank", (3,))


def test_a_named_pipe_and_a_socket_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    assert "a named pipe" in answer(tmp_path / "pipe.log")[0]


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, jobs: Jobs) -> None:
    (tmp_path / "job.log").write_bytes(PLAIN)
    (tmp_path / "job.log").chmod(0)
    if os.geteuid() != 0:
        assert "Permission denied" in answer(tmp_path / "job.log")[0]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("analyze job.log", 1, "CRASHED"),
        ("analyze job.log other.log", 1, "CRASHED"),
        ("analyze empty.log", 2, "empty.log: empty"),
        ("analyze none.log", 2, "none.log does not exist"),
        ("analyze https://example.org/job.log", 2, "https://example.org/job.log is a URL: nsadiag fetches nothing"),
        ("analyze job.log --format nothing", 2, "no such format"),
        ("diff job.log other.log", 0, "No difference"),
        ("report job.log --format issue", 0, "Last lines of each rank"),
        ("facts job.log other.log exceptions", 0, ""),
        ("facts job.log", 0, "exceptions"),
        ("analyze job.log --explain", 0, "rank_exception"),
        ("analyze job.log --why-not missing_rank", 0, "missing_rank"),
    ],
)  # fmt: skip
def test_every_command_takes_them_and_ends_with_its_code(jobs: Jobs, line: str, code: int, said: str) -> None:
    for name, text in (("job.log", JOB), ("other.log", JOB), ("empty.log", "")):
        (jobs.directory / name).write_text(text)
    done = jobs.run(*line.split())
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback (most recent call last):\n  File" not in done.stderr
