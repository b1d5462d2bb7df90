"""Global hooks of torch.optim around the steps of all optimizers: others in short steps that are counted alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from nsadiag.worker.probes import rests
from nsadiag.worker.probes.patch import not_compiled

Hook = Callable[..., None]


def _nothing(*_: Any) -> None: ...


not_compiled(_nothing)


@contextlib.contextmanager
def step_hooks(before: Hook, after: Hook, *, after_resting: Hook = _nothing) -> Iterator[None]:
    """`before` and `after` are called around each step that is recorded, and `after_resting` after each that rests."""
    from torch.optim import optimizer as optim

    hooks = (
        (optim.register_optimizer_step_pre_hook(before), before, _nothing),
        (optim.register_optimizer_step_post_hook(after), after, after_resting),
    )

    def rest(now: bool) -> None:
        for handle, recording, resting in hooks:
            held = handle.hooks_dict_ref()
            # Another value and never another key: a step on another thread may be going through them.
            if held is not None and handle.id in held:
                held[handle.id] = resting if now else recording

    rests.on_change.append(rest)
    try:
        yield
    finally:
        rests.on_change.remove(rest)
        for handle, *_ in hooks:
            handle.remove()
