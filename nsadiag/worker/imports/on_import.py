"""Calls back once a module has been imported, without importing it ourselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import dropwhile, islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nsadiag.worker.interruptions import pass_on, tolerated

if TYPE_CHECKING:
    import importlib.machinery


class _After:
    """Finds the module where it would be found anyway, and wraps its loader.

    It stays until the module has run: libraries ask whether torch is there (`importlib.util.find_spec`) long before
    they import it, and throw that answer away.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name, self.callback = name, callback
        self.called = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self.called:
            return None
        spec = self._found_elsewhere(fullname, path, target)
        if spec is not None and spec.loader is not None:
            self._call_after_exec(spec.loader)
        return spec

    def _found_elsewhere(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """The answer of the finders behind this one, as they would give it without it."""
        behind = dropwhile(lambda finder: finder is not self, list(sys.meta_path))
        for finder in islice(behind, 1, None):
            find = getattr(finder, "find_spec", None)
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target) if find else None
            if spec is not None:
                return spec
        return None

    def _call_after_exec(self, loader: Any) -> None:
        run, of_its_own = loader.exec_module, "exec_module" in getattr(loader, "__dict__", {})

        def exec_module(module: ModuleType) -> None:
            if loader.exec_module is exec_module:  # and not one that somebody put around it
                if of_its_own:
                    loader.exec_module = run
                else:
                    del loader.exec_module
            try:
                run(module)
            except BaseException as error:
                # Where nothing else of ours is in this process yet, nobody would take this frame out of the traceback.
                from nsadiag.worker.replacement import leave_no_frame

                leave_no_frame(error)
                raise
            # The module may be run again (reload), or by a loader that was found, and wrapped, twice.
            if self.called:
                return
            self.called = True
            with tolerated(ValueError):
                sys.meta_path.remove(self)
            try:
                self.callback()
            except Exception as error:
                pass_on(error)
                with tolerated(Exception):
                    print(f"nsadiag: no probes for {self.name}: {error!r}", file=sys.stderr)

        loader.exec_module = exec_module


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Runs `callback` right after `name` is imported; at once if it already is."""
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _After(name, callback))
