"""Our output of faulthandler, beside the user's: there is one of it in a process, and the user's goes first."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nsadiag.worker.descriptors import HeldFile
from nsadiag.worker.failures.traceback_signal import NUMBER, is_free
from nsadiag.worker.interruptions import pass_on
from nsadiag.worker.replacement import Patches, faithful, leave_no_frame

if TYPE_CHECKING:
    from nsadiag.worker.recorder import Recorder


class Faults:
    """Stacks at a death in C code (faults.log), unless the user has enabled faulthandler; and at a signal (tracebacks.log)."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._enabled: HeldFile | None = None
        self._registered: HeldFile | None = None
        self._is_the_users = faulthandler.is_enabled()
        self._enable, self._disable = faulthandler.enable, faulthandler.disable
        self._patches = Patches()

    def start(self) -> int | None:
        """The number of the signal at which all stacks are written; None where there is none to be had."""
        self._replace("enable", self._users_enable)
        self._replace("disable", self._users_disable)
        self._replace("is_enabled", self._users_state)
        self._enable_ours()
        return self._register_ours()

    def check(self) -> None:
        """Opens anew what the job has closed, before C writes into a file that has its number now."""
        if self._enabled is not None and not self._enabled.is_ours():
            self._disable()
            self._enable_ours()
        if self._registered is not None and not self._registered.is_ours():
            faulthandler.unregister(NUMBER)
            self._register_ours()

    def stop(self) -> None:
        """As if we had never been here."""
        self._patches.undo()
        if self._enabled is not None:
            self._disable()
            self._enabled.close()
        if self._registered is not None:
            faulthandler.unregister(NUMBER)
            self._registered.close()
        self._enabled = self._registered = None

    def _replace(self, name: str, answer: Callable[..., Any]) -> None:
        def around(*args: Any, **kwargs: Any) -> Any:
            try:
                return answer(*args, **kwargs)
            except BaseException as error:
                leave_no_frame(error)
                raise

        self._patches.place(faulthandler, name, lambda original: faithful(around, original))

    def _enable_ours(self) -> None:
        self._enabled = None
        if self._is_the_users:
            return
        try:
            self._enabled = HeldFile(self._recorder.directory.faults)
            self._enable(file=self._enabled.number)
        except (OSError, RuntimeError, ValueError) as error:
            pass_on(error)
            self._recorder.gap(f"no stacks at a death in C code: {error!r}")

    def _register_ours(self) -> int | None:
        self._registered = None
        if not is_free():
            return None
        try:
            self._registered = HeldFile(self._recorder.directory.tracebacks)
            # Restarts what system call it can, and leaves every other handler alone.
            faulthandler.register(NUMBER, file=self._registered.number, all_threads=True, chain=False)
        except (OSError, RuntimeError, ValueError, AttributeError) as error:
            pass_on(error)
            self._recorder.gap(f"no stacks by signal: {error!r}")
            return None
        return int(NUMBER)

    def _users_enable(self, /, *args: Any, **kwargs: Any) -> Any:
        done = self._enable(*args, **kwargs)
        self._is_the_users = True
        if self._enabled is not None:
            self._enabled.close()
            self._enabled = None
        return done

    def _users_disable(self, /) -> bool:
        was, self._is_the_users = self._is_the_users, False
        if was:
            self._disable()
            self._enable_ours()
        return was

    def _users_state(self, /) -> bool:
        return self._is_the_users
