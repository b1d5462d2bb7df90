"""The cells that should compute the same: each is compared with the one that has the control's settings."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from nsadiag.spec.hypothesis import Scalar
from nsadiag.spec.space import Space, checked_pattern
from nsadiag.spec.strict import Strict, label


class Parity(Strict):
    """`control` names settings of factors that must not change what is computed."""

    control: dict[str, Scalar] = Field(min_length=1)

    def of(self, factors: Mapping[str, str]) -> dict[str, str]:
        """The factors of the cell's control: the cell's own, but for those that the control names."""
        return {**factors, **{name: label(value) for name, value in self.control.items()}}

    def check(self, room: Space) -> None:
        """UsageError on a factor or a setting that is not there."""
        checked_pattern(self.control, room, "parity.control")
