"""How a rank ended, where its launcher reaped it before anyone could look at the zombie."""

from nsadiag.analysis.load import told_end

UNSEEN = {"pid": 10605, "t_s": 15.7, "exit_code": None, "signal": None, "by_us": False}
# As torchrun 2.11 to 2.15 print it.
TORCHRUN = (
    "E1120 20:26:57.997000 10568 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code})"
    " local_rank: 1 (pid: 10605) of binary: /usr/bin/python\n"
)


def test_faulthandler_tells_the_signal() -> None:
    faults = "Fatal Python error: Segmentation fault\n\nExtension modules: torch._C\n"
    assert told_end(UNSEEN, faults, "")["signal"] == 11


def test_torchrun_tells_a_signal_or_a_code() -> None:
    assert told_end(UNSEEN, "", TORCHRUN.format(code=-9))["signal"] == 9
    assert told_end(UNSEEN, "", TORCHRUN.format(code=3))["exit_code"] == 3


def test_another_process_is_not_taken_for_the_rank() -> None:
    assert told_end({**UNSEEN, "pid": 1}, "", TORCHRUN.format(code=-9))["signal"] is None


def test_what_was_seen_is_not_changed() -> None:
    seen = {**UNSEEN, "exit_code": 0}
    assert told_end(seen, "Fatal Python error: Aborted", TORCHRUN.format(code=-9)) == seen
