"""nsadiag in other libraries: callbacks for trainers, and verdicts in experiment trackers. Each needs the library that it is named after."""

from nsadiag.integrations.watching import metrics_of

__all__ = ["metrics_of"]
