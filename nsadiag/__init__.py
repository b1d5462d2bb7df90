"""nsadiag: the rank, the line and the reason when a distributed PyTorch job hangs, crawls, crashes or trains wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nsadiag.version import __version__

if TYPE_CHECKING:
    from nsadiag.commands.experiments.check_function import Checked, check
    from nsadiag.reports.loaded import Run, load
    from nsadiag.worker.inline import watch
    from nsadiag.worker.phases import phase

__all__ = ["Checked", "Run", "__version__", "check", "load", "phase", "watch"]


def __getattr__(name: str) -> Any:
    # Every Python process of a job imports this package; only those that ask pay for more.
    if name == "watch":
        from nsadiag.worker.inline import watch

        return watch
    if name == "phase":
        from nsadiag.worker.phases import phase

        return phase
    if name in ("check", "Checked"):
        from nsadiag.commands.experiments import check_function

        return getattr(check_function, name)
    if name in ("load", "Run"):
        from nsadiag.reports import loaded

        return getattr(loaded, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """For Tab and help()."""
    return __all__
