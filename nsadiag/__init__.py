"""nsadiag: who, where and why a distributed PyTorch job hangs, crawls, crashes or trains wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nsadiag.worker.inline import watch

__all__ = ["watch"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    # Every Python process of a job imports this package; only those that ask pay for more.
    if name == "watch":
        from nsadiag.worker.inline import watch

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
