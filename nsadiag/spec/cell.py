"""One experiment of a matrix."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A value for every factor, and the command that they come to."""

    factors: dict[str, str]
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    world_size: int = 1
    timeout_s: float = 300.0  # 0: none
    gpus: int = 0  # that it cannot do without
    unsaid: frozenset[str] = frozenset()  # factors that the id leaves out

    @property
    def id(self) -> str:
        """Names the directory as well, so a slash in a value becomes a dash."""
        number = self.factors.get("repeat")
        return f"{self.name},repeat={number}" if number else self.name

    @property
    def name(self) -> str:
        """The id that all repeats share."""
        unsaid = {*self.unsaid, "repeat"}
        return ",".join(s for name, s in self.settings().items() if name not in unsaid) or "base"

    def settings(self) -> dict[str, str]:
        """Every factor as in an id: `layers=5`."""
        return {name: f"{name}={value}".replace("/", "-") for name, value in self.factors.items()}

    def repeated(self, number: int) -> Cell:
        return replace(self, factors={**self.factors, "repeat": str(number)})

    def command(self) -> list[str]:
        """The same cell as a command to type."""
        return ["torchrun", "--standalone", "--nproc-per-node", str(self.world_size), *self.argv]
