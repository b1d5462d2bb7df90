# how: rank
# by-design: signals
import pathlib
import signal

status = dict(
    line.split(":\t") for line in pathlib.Path("/proc/self/status").read_text().splitlines() if ":\t" in line
)
print([n for n in range(signal.SIGRTMIN, signal.SIGRTMAX + 1) if int(status["SigCgt"], 16) >> (n - 1) & 1])
