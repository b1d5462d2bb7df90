"""The command lines of a proof: the same on one process, and with its batch."""

from __future__ import annotations

from pathlib import Path

from nsadiag.errors import UsageError

NPROC = ("--nproc-per-node", "--nproc_per_node")
MODULE = "torch.distributed.run"


def ranks_of(command: list[str]) -> int:
    """The number of ranks that the line starts. Raises UsageError where it is no line of torchrun's with a number of them."""
    at = _at(command)
    value = command[at].partition("=")[2] or (command[at + 1] if at + 1 < len(command) else "")
    if not value.isdigit() or int(value) < 2:
        raise UsageError("a proof needs two ranks or more", "give --nproc-per-node a number")
    return int(value)


def alone(command: list[str]) -> list[str]:
    """The same line for one process."""
    at = _at(command)
    name, equals, _ = command[at].partition("=")
    return [*command[:at], *([f"{name}=1"] if equals else [name, "1"]), *command[at + (1 if equals else 2) :]]


def _at(command: list[str]) -> int:
    """The place of the word that sets the number of ranks."""
    is_launched = Path(command[0]).name == "torchrun" or MODULE in command[:4]
    if is_launched:
        for at, word in enumerate(command):
            if word.partition("=")[0] in NPROC:
                return at
            if word.endswith(".py"):
                break
    raise UsageError(
        "prove takes a line of torchrun's that sets --nproc-per-node",
        "nsadiag prove -- torchrun --nproc-per-node 2 train.py",
    )


def with_batch(command: list[str], option: str, ranks: int) -> list[str]:
    """The line with the value of an option of the script, times the number of ranks. Raises UsageError where it is not there."""
    if not option:
        return command
    for at, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name == option:
            value = value if equals else command[at + 1] if at + 1 < len(command) else ""
            if value.isdigit():
                more = str(int(value) * ranks)
                return [
                    *command[:at],
                    *([f"{name}={more}"] if equals else [name, more]),
                    *command[at + (1 if equals else 2) :],
                ]
    raise UsageError(f"{option} has no number in the command", f"write it there: ... train.py {option} 8")
