"""The guard of a job: a small process that owns the job's family, whatever becomes of nsadiag.

nsadiag starts this file by its path (`python -I -S guard.py DESCRIPTOR`), so it needs the standard library alone and is up
in 20 ms. Being a subreaper, it becomes the parent of whatever loses its own, so that no daemon, and nothing with an
environment of its own, can leave the family. docs/decisions.md, "The guard", has the rules.
"""

from __future__ import annotations

# What costs milliseconds to import (pathlib, json, socket, typing) is done without.
import contextlib
import ctypes
import errno
import marshal
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, NoReturn

PR_SET_CHILD_SUBREAPER = 36
# What a terminal, a shell or a scheduler may send to everything in sight: nsadiag answers it, not the guard.
NOT_FOR_US = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU,
)  # fmt: skip
# Ignored by every Python at its start.
PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ)
TERM_S, KILL_S = 5.0, 5.0
PAUSE_S = 0.05


def parents() -> dict[int, int]:
    """The parent of each living process, by pid."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - every millisecond counts while processes are born
        if name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = stat_of(int(name))
                if state != "Z":
                    found[int(name)] = parent
    return found


def stat_of(pid: int) -> tuple[str, int]:
    """State and parent of a process. Raises OSError once it is gone."""
    with open(f"/proc/{pid}/stat", errors="replace") as file:  # noqa: PTH123
        fields = file.read().rpartition(") ")[2].split()
    return fields[0], int(fields[1])


def descendants(root: int) -> set[int]:
    """Pids of all living processes below `root`."""
    above, found = parents(), {root}
    while more := {pid for pid, parent in above.items() if parent in found and pid not in found}:
        found |= more
    return found - {root}


def send(pids: Iterable[int], *numbers: int) -> None:
    """Sends the signals to those that still have the parent by which they were found."""
    for pid in pids:
        with contextlib.suppress(OSError):
            before = stat_of(pid)[1]
            handle = os.pidfd_open(pid)
            try:
                if stat_of(pid)[1] == before:
                    for number in numbers:
                        signal.pidfd_send_signal(handle, number)
            finally:
                os.close(handle)


def fall_silent() -> None:
    """Lets go of nsadiag's stderr: whoever reads it to its end, as `2>&1 | tee log` does, is not to wait for a job that was left."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"nsadiag: {text}\n".encode(errors="replace"))


def execute(command: list[bytes], environment: dict[bytes, bytes]) -> NoReturn:
    """Becomes the command. A file without a `#!` is a script for sh, as it is to `env` and to shells. Raises OSError."""
    try:
        os.execvpe(command[0], command, environment)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    import shutil

    path = os.fsdecode(environment.get(b"PATH", os.fsencode(os.defpath)))
    found = shutil.which(os.fsdecode(command[0]), path=path)
    os.execve("/bin/sh", [b"/bin/sh", os.fsencode(found or command[0]), *command[1:]], environment)


class Terminal:
    """The controlling terminal, which a job in a process group of its own is handed when it asks for it."""

    def __init__(self, nsadiags_group: int) -> None:
        self._theirs = nsadiags_group
        self._is_the_jobs = False
        try:
            self._file: int | None = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError:
            self._file = None

    def job_stopped(self, group: int, number: int) -> None:
        """The launcher was stopped: by reading a terminal that it does not have, or by Ctrl-Z where it has it."""
        if self._file is None:
            return
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            if os.tcgetpgrp(self._file) == self._theirs:
                self._hand_over(group)
            else:
                os.killpg(self._theirs, number)  # a shell is to see nsadiag stopped, as it would see the job
        elif number == signal.SIGTSTP and self._is_the_jobs:
            os.tcsetpgrp(self._file, self._theirs)
            os.killpg(self._theirs, signal.SIGTSTP)

    def continued(self, group: int) -> None:
        """nsadiag was continued, in the foreground or not, and so is the job."""
        if self._is_the_jobs and self._file is not None and os.tcgetpgrp(self._file) == self._theirs:
            self._hand_over(group)
        else:
            self._is_the_jobs = False
            os.killpg(group, signal.SIGCONT)

    def _hand_over(self, group: int) -> None:
        assert self._file is not None
        os.tcsetpgrp(self._file, group)
        self._is_the_jobs = True
        os.killpg(group, signal.SIGCONT)

    def take_back(self) -> None:
        """The launcher has ended."""
        if self._is_the_jobs and self._file is not None:
            self._is_the_jobs = False
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._file, self._theirs)


class Guard:
    """Starts the launcher, reports its end to nsadiag, and stays until the last of the family is gone."""

    def __init__(self, control: int, request: dict[str, Any], ignored: set[int]) -> None:
        self._control, self._request, self._ignored = control, request, ignored
        self._terminal = Terminal(request["group"])
        self._watched = True  # by nsadiag
        self._ends_with_nsadiag = bool(request["die_with_me"])
        self._left = False  # nsadiag means the job to stay when it ends
        self._closed = False  # by nsadiag, which has written down all there is to know
        self._status: int | None = None  # the launcher's
        self._started_ns = time.monotonic_ns()
        self._launcher = 0

    # -- the launcher -----------------------------------------------------------------------------

    def start(self) -> bool:
        """Starts the launcher; False, and nsadiag is told why, where it cannot be started."""
        failed, fails = os.pipe()
        self._launcher = os.fork()
        if self._launcher == 0:
            self._become_the_job(fails)
        os.close(fails)
        error = os.read(failed, 32)
        os.close(failed)
        with contextlib.suppress(OSError):
            os.setpgid(self._launcher, self._launcher)
        self._let_go_of_the_jobs_files()
        if error:
            os.waitpid(self._launcher, 0)
            self._tell("error", int(error))
            return False
        self._tell("started", self._launcher)
        return True

    def _become_the_job(self, fails: int) -> NoReturn:
        """Nothing of the guard is to be seen in the job but its pid as the parent's."""
        try:
            os.setpgid(0, 0)
            for number in (*NOT_FOR_US, signal.SIGCHLD, *PYTHONS_OWN):
                ignored = number in self._ignored and number not in PYTHONS_OWN
                signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
            for number in self._request["pass_fds"]:
                os.set_inheritable(number, True)
            if self._request["cwd"] is not None:
                os.chdir(self._request["cwd"])
            signal.pthread_sigmask(signal.SIG_SETMASK, self._request["mask"])
            execute(self._request["command"], self._request["env"])
        except OSError as error:
            os.write(fails, str(error.errno).encode())
        finally:
            os._exit(127)

    def _let_go_of_the_jobs_files(self) -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):
            os.dup2(null, number)
        os.dup2(self._request["stderr"], 2)
        for number in {null, self._request["stderr"], *self._request["pass_fds"]}:
            os.close(number)

    # -- while it runs ----------------------------------------------------------------------------

    def serve(self) -> None:
        """Returns when nothing of the family lives, and nsadiag wants no more."""
        wake, wakes = os.pipe()
        for number in (wake, wakes):
            os.set_blocking(number, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while self._reap() or self._watched:
            for descriptor, _ in poll.poll():
                if descriptor == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                elif not self._hear():
                    poll.unregister(self._control)
                    self._watched = False
                    self._nsadiag_is_gone()

    def _reap(self) -> bool:
        """Notes who has ended or was stopped; False once there is nobody left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid != self._launcher:
                continue
            if os.WIFSTOPPED(status):
                if self._watched:
                    with contextlib.suppress(OSError):
                        self._terminal.job_stopped(os.getpgid(pid), os.WSTOPSIG(status))
            else:
                self._status = os.waitstatus_to_exitcode(status)
                self._terminal.take_back()
                self._tell("ended", self._status)

    def _hear(self) -> bool:
        """Does what nsadiag says; False once it is gone."""
        try:
            words = os.read(self._control, 4096).decode()
        except OSError:
            words = ""
        for word in words.split():
            if word == "ending":
                self._ends_with_nsadiag = True
            elif word == "leave":
                self._left = True
                fall_silent()
            elif word == "stop" and self._status is None:
                with contextlib.suppress(OSError):
                    os.killpg(os.getpgid(self._launcher), signal.SIGTSTP)
            elif word == "continue" and self._status is None:
                with contextlib.suppress(OSError):
                    self._terminal.continued(os.getpgid(self._launcher))
            elif word.startswith("signal:") and self._status is None:
                with contextlib.suppress(OSError):
                    os.kill(self._launcher, int(word.partition(":")[2]))
            elif word == "close":
                self._closed = True
                self._end_family()
                return False
        return bool(words)

    def _tell(self, what: str, number: int) -> None:
        with contextlib.suppress(OSError):
            os.write(self._control, f"{what} {number}\n".encode())

    # -- without nsadiag --------------------------------------------------------------------------

    def _nsadiag_is_gone(self) -> None:
        if self._closed or self._left or not self._reap():
            return
        if self._ends_with_nsadiag:
            say("nsadiag died; its job is ended")
            self._end_family()
        else:
            where = (
                f"its output is in {self._request['run']}" if self._request["run"] else "it is not recorded"
            )
            say(
                f"nsadiag died; the job goes on unwatched: process {self._launcher}, {where}; should it hang: nsadiag attach {self._launcher}"
            )

    def _end_family(self) -> None:
        """SIGTERM to all, SIGKILL to those that stay; what waits in the kernel (state D) is given up."""
        self._send_until((signal.SIGTERM, signal.SIGCONT), TERM_S, again=False)
        self._send_until((signal.SIGKILL,), KILL_S, again=True)

    def _send_until(self, numbers: tuple[int, ...], seconds: float, *, again: bool) -> None:
        """Returns when nobody is left, or the time is up; `again`: whoever was born meanwhile is sent them too."""
        deadline, told = time.monotonic() + seconds, set[int]()
        while self._reap() and time.monotonic() < deadline:
            found = descendants(os.getpid())
            send(found if again else found - told, *numbers)
            told |= found
            time.sleep(PAUSE_S)

    def finish(self) -> None:
        """Becomes the program that writes down how the job ended, where nsadiag cannot any more."""
        if self._request["run"] is None or self._closed:
            return
        facts = (
            self._request["run"],
            self._launcher,
            self._status,
            self._started_ns,
            self._request["scratch"],
        )
        root = os.path.abspath(__file__).rpartition("/nsadiag/agent/")[0]  # noqa: PTH100 - pathlib costs 10 ms
        program = f"import sys; sys.path.append({root!r}); from nsadiag.agent.watching.orphaned import main; main(*{facts!r})"
        os.execv(sys.executable, [sys.executable, "-c", program])


def read_request(control: int) -> dict[str, Any] | None:
    """The first message from nsadiag, behind its length; None if it is gone before that."""
    data = b""
    while len(data) < 8 or len(data) < 8 + int.from_bytes(data[:8], "little"):
        more = os.read(control, 1 << 20)
        if not more:
            return None
        data += more
    return dict(marshal.loads(data[8:]))


def main(descriptor: int) -> None:
    ignored = {int(number) for number in NOT_FOR_US if signal.getsignal(number) == signal.SIG_IGN}
    for number in NOT_FOR_US:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.set_inheritable(descriptor, False)
    request = read_request(descriptor)
    if request is None:
        return
    os.set_inheritable(request["stderr"], False)
    guard = Guard(descriptor, request, ignored)
    if guard.start():
        guard.serve()
        guard.finish()


if __name__ == "__main__":
    main(int(sys.argv[1]))
