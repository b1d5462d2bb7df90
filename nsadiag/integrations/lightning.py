"""A callback for Lightning.

trainer = L.Trainer(..., callbacks=[NsadiagCallback()])
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning" in sys.modules:
    from lightning.pytorch.callbacks import Callback
else:  # both distributions have the same classes, which do not know each other
    from pytorch_lightning.callbacks import Callback

from nsadiag.integrations.watching import Watching, metrics_of


class NsadiagCallback(Callback):
    """Watch `trainer.fit`, name its phases, and hand the verdict to the trainer's loggers.

    Options are those of `nsadiag.watch`. Under `nsadiag run` it only names the phases.
    """

    def __init__(self, **options: Any) -> None:
        self._watching = Watching(options)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._watching.begin(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._watching.enter("train")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        self._watching.leave("train")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._watching.enter("validate")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._watching.leave("validate")

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        verdict = self._watching.end()
        if verdict is not None:
            for logger in trainer.loggers:
                logger.log_metrics(metrics_of(verdict), step=trainer.global_step)
