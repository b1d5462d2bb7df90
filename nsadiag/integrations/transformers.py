"""A callback for `transformers.Trainer`.

trainer = Trainer(..., callbacks=[NsadiagCallback()])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from nsadiag.integrations.watching import Watching, metrics_of


class NsadiagCallback(TrainerCallback):
    """Watch the training, name evaluation and saving, and hand the verdict to the trainer's loggers.

    Options are those of `nsadiag.watch`. Under `nsadiag run` it only names the phases.
    """

    def __init__(self, **options: Any) -> None:
        self._watching = Watching(options)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self._watching.begin(model)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watching.enter("train")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watching.leave("train")
        self._next(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._next(control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watching.leave("evaluate")
        self._next(control)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watching.leave("save")

    def _next(self, control: Any) -> None:
        """Name what the trainer does next; by now it has decided, and it evaluates before it saves."""
        if control.should_evaluate:
            self._watching.enter("evaluate")
        elif control.should_save:
            self._watching.enter("save")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        verdict = self._watching.end()
        if verdict is not None:
            said = {"nsadiag/outcome": verdict.outcome, "nsadiag/summary": verdict.summary}
            state.log_history.append({"step": state.global_step, **said, **metrics_of(verdict)})
