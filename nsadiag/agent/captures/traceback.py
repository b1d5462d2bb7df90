"""Python stacks by faulthandler, called from C++: works while another thread holds the GIL."""

from __future__ import annotations

from nsadiag.agent.captures.target import Target
from nsadiag.agent.captures.worker_server import ask


def traceback(target: Target) -> None:
    """traceback.txt: all threads, innermost line first."""
    target.directory.traceback.write_bytes(ask(target.socket, "dump_traceback"))
