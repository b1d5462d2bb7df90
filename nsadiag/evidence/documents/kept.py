"""Documents that a disk had no room for: kept in memory, so that whoever wrote them can still judge by them."""

from __future__ import annotations

from pathlib import Path

MOST_BYTES = 64 << 20
_documents: dict[str, bytes] = {}
_reasons: dict[str, str] = {}  # by path: why it could not be written
_on = False


def start() -> None:
    """From here on a document that cannot be written is kept, and its writer not troubled."""
    global _on
    _on = True


def keep(path: Path, content: bytes, error: OSError) -> bool:
    """Whether it is kept; a document for which there is no room here either is lost, and said to be."""
    if not _on:
        return False
    _reasons[str(path)] = error.strerror or str(error)
    if len(content) + sum(map(len, _documents.values())) <= MOST_BYTES:
        _documents[str(path)] = content
    return True


def forget(path: Path) -> None:
    """It has been written after all."""
    if _reasons:
        _reasons.pop(str(path), None)
        _documents.pop(str(path), None)


def content_of(path: Path) -> bytes | None:
    """The content kept for the file; None if it was written."""
    return _documents.get(str(path)) if _documents else None


def unwritten() -> dict[str, str]:
    """The reasons for unwritten files, by path."""
    return dict(_reasons)
