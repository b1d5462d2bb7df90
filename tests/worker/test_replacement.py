"""What stands in for functions of Python's own cannot be told from them, and is gone without a trace."""

import inspect
import os
import pickle
import signal
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nsadiag
from nsadiag.worker.replacement import Patches, cut_our_frames, faithful, noted

BOOTSTRAP = Path(nsadiag.__file__).parent / "worker" / "bootstrap"


@pytest.fixture
def patches() -> Any:
    made = Patches()
    yield made
    made.undo()


def told_of(function: Callable[..., Any]) -> list[Any]:
    """What a program may ask of it."""
    return [
        pickle.dumps(function),
        repr(function),
        str(inspect.signature(function)),
        inspect.isbuiltin(function),
        inspect.isfunction(function),
        inspect.getfullargspec(function),
        [getattr(function, name) for name in ("__name__", "__qualname__", "__module__", "__doc__")],
        weakref.ref(function)() is function,
    ]


@pytest.mark.parametrize("name", ["kill", "_exit", "abort", "killpg"])
def test_a_builtin_that_is_replaced_answers_as_before(patches: Patches, name: str) -> None:
    plain = getattr(os, name)
    before, seen = told_of(plain), []
    patches.note(os, name, lambda *args, **kwargs: seen.append((args, kwargs)))
    replaced = getattr(os, name)
    assert replaced is not plain
    assert told_of(replaced) == before
    assert pickle.loads(pickle.dumps(replaced)) is replaced
    # A builtin is not bound as a method.
    assert type("Keeps", (), {"kept": replaced})().kept is replaced
    patches.undo()
    assert getattr(os, name) is plain
    assert pickle.loads(before[0]) is plain


def test_what_is_called_gets_all_arguments_and_its_frames_alone_are_in_the_traceback(
    patches: Patches,
) -> None:
    seen: list[Any] = []
    patches.note(os, "kill", lambda *args, **kwargs: seen.append((args, kwargs)))
    with pytest.raises(ProcessLookupError) as gone:
        os.kill(2**22 + 1, signal.SIGTERM)
    with pytest.raises(TypeError, match="takes no keyword arguments"):
        os.kill(os.getpid(), sig=0)  # type: ignore[call-arg]
    assert seen == [((2**22 + 1, signal.SIGTERM), {}), ((os.getpid(),), {"sig": 0})]
    assert [f.name for f in traceback.extract_tb(gone.value.__traceback__)] == [
        "test_what_is_called_gets_all_arguments_and_its_frames_alone_are_in_the_traceback"
    ]


class Base:
    def run(self, first: int, *, second: int = 2) -> int:
        """Docstring."""
        if first < 0:
            raise ValueError(first)
        return first + second


def test_a_method_that_is_replaced_keeps_signature_and_pickle_and_is_put_back(patches: Patches) -> None:
    plain, before = Base.__dict__["run"], told_of(Base.run)
    patches.note(Base, "run", lambda *_args, **_kwargs: None)
    assert Base().run(1, second=3) == 4
    now = told_of(Base.run)
    assert (now[0], now[2:]) == (before[0], before[2:])
    with pytest.raises(ValueError, match="-1") as raised:
        Base().run(-1)
    assert [f.name for f in traceback.extract_tb(raised.value.__traceback__)][1:] == ["run"]
    patches.undo()
    assert Base.__dict__["run"] is plain


def test_a_bound_method_can_stand_for_a_python_function() -> None:
    """ipykernel puts a function of its own in the place of faulthandler.enable, which is a builtin elsewhere."""

    class Ours:
        def around(self, number: int) -> int:
            return number + 1

    def original(number: int) -> int:
        """Doubles."""
        return 2 * number

    stand_in = faithful(Ours().around, original)
    assert stand_in(3) == 4
    assert (stand_in.__name__, stand_in.__doc__) == ("original", "Doubles.")


def test_an_inherited_attribute_leaves_nothing_on_the_class_that_had_none(patches: Patches) -> None:
    derived = type("Derived", (Base,), {})
    patches.note(derived, "run", lambda *_args, **_kwargs: None)
    assert "run" in vars(derived)
    patches.undo()
    assert "run" not in vars(derived)


def test_what_somebody_put_over_ours_stays(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    patches.note(Base, "run", lambda *args, **_kwargs: seen.append(args[1:]))
    ours = Base.run

    def theirs(self: Base, first: int) -> int:
        return 10 * ours(self, first)

    monkeypatch.setattr(Base, "run", theirs)
    patches.undo()
    assert Base.run is theirs
    assert (Base().run(1), seen) == (30, [(1,)])


def test_frames_of_ours_between_the_users_are_cut_out_of_a_whole_chain() -> None:
    def fails() -> None:
        raise KeyError("user")

    # A frame of ours is known by its file.
    code = compile("def between(call):\n    call()\n", str(BOOTSTRAP.parent / "probe.py"), "exec")
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    try:
        try:
            namespace["between"](fails)
        except KeyError as error:
            raise ValueError("second") from error
    except ValueError as error:
        cut_our_frames(error)
        cause = error.__cause__
        assert cause is not None
        assert [f.name for f in traceback.extract_tb(cause.__traceback__)][1:] == ["fails"]
        assert len(traceback.extract_tb(error.__traceback__)) == 1


def test_an_observation_runs_before_and_the_original_has_the_last_word() -> None:
    order: list[str] = []

    def original(text: str) -> str:
        order.append("original")
        return text.upper()

    stand_in = noted(lambda text: order.append(f"before {text}"), original)
    assert (stand_in("a"), order) == ("A", ["before a", "original"])
    assert faithful(len, len)("abc") == 3


ASKS = """
import faulthandler, os, pickle, signal, sys, threading, traceback
print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
print(os.kill is sys.modules["posix"].kill, *(pickle.dumps(f) for f in (os.kill, os._exit, sys.exit, signal.raise_signal,
      threading.excepthook, sys.excepthook, faulthandler.enable, faulthandler.is_enabled)))
for call in (lambda: os.kill(os.getpid(), sig=0), lambda: os.kill(2**22 + 1, 1), lambda: sys.exit(1, 2), lambda: sys.exit("x")):
    try: call()
    except BaseException: traceback.print_exc()
print(faulthandler.is_enabled(), faulthandler.disable(), faulthandler.enable(), faulthandler.is_enabled(),
      faulthandler.disable(), faulthandler.is_enabled())
print(os.open(os.devnull, os.O_RDONLY), "sitecustomize" in sys.modules, [p for p in sys.path if "bootstrap" in p])
thread = threading.Thread(target=lambda: 1 / 0, name="worker")
thread.start()
thread.join()
def fails(): raise ValueError("end")
END
"""
ENDS = {
    "an exception": "fails()",
    "an exception and a hook of the user's": "sys.excepthook = lambda *a: print('mine', a[0])\nfails()",
    "an exit code by name": "sys.stdout.flush()\nos._exit(status=3)",
    "a text": "sys.exit('goodbye')",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_asks_sees_no_difference(tmp_path: Path, end: str) -> None:
    program = tmp_path / "asks.py"
    program.write_text(ASKS.replace("END", ENDS[end]))
    watched = {"NSADIAG_RUN_DIR": str(tmp_path), "PYTHONPATH": str(BOOTSTRAP), "RANK": "0", "WORLD_SIZE": "1"}
    told = []
    for added in ({}, watched):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | added
        done = subprocess.run(
            [sys.executable, str(program)], env=environment, capture_output=True, text=True, check=False
        )
        told.append((done.returncode, done.stdout, done.stderr))
    assert told[1] == told[0]
    rank = tmp_path / "ranks" / "00000"
    if "exception" in end:
        assert '"message": "end"' in (rank / "exception.json").read_text()
    else:
        assert "asks.py" in (rank / "leaving.json").read_text()


def test_hooks_and_functions_are_pythons_own_after_a_watch(tmp_path: Path) -> None:
    source = """
import faulthandler, os, sys, threading
plain = [sys.excepthook, sys.__excepthook__, threading.excepthook, sys.exit, os._exit, os.kill, faulthandler.enable]
from nsadiag.worker import session
session.open_rank(0, 1)
assert sys.exit is not plain[3]
session.close()
assert plain == [sys.excepthook, sys.__excepthook__, threading.excepthook, sys.exit, os._exit, os.kill, faulthandler.enable]
assert not faulthandler.is_enabled()
print(sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd") if int(n) > 500))
"""
    environment = {**os.environ, "NSADIAG_RUN_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "log" not in done.stdout


class Refuses(type):
    """Lets nobody set or delete an attribute of its classes."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise TypeError(f"{cls.__name__} is frozen")

    def __delattr__(cls, name: str) -> None:
        raise TypeError(f"{cls.__name__} is frozen")


def test_a_metaclass_that_refuses_attributes_is_not_asked(patches: Patches) -> None:
    class Base:
        def run(self) -> str:
            return "plain"

    class Frozen(Base, metaclass=Refuses):
        def stop(self) -> str:
            return "plain"

    stop = Frozen.stop
    for name in ("run", "stop"):
        patches.put(Frozen, name, lambda self: "replaced")
    assert (Frozen().run(), Frozen().stop()) == ("replaced", "replaced")
    patches.undo()
    assert "run" not in vars(Frozen) and Frozen.stop is stop
