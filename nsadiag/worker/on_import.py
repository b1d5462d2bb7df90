"""Calls back once a module has been imported, without importing it ourselves."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class _After(importlib.abc.MetaPathFinder):
    """Finds the module where it would be found anyway, and wraps its loader for this one import."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name, self.callback = name, callback

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            self._call_after_exec(spec.loader)
        return spec

    def _call_after_exec(self, loader: Any) -> None:
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            try:
                self.callback()
            except Exception as error:
                print(f"nsadiag: no probes for {self.name}: {error!r}", file=sys.stderr)

        loader.exec_module = exec_module


def when_imported(name: str, callback: Callable[[], None]) -> None:
    """Runs `callback` right after `name` is imported; at once if it already is."""
    if name in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _After(name, callback))
