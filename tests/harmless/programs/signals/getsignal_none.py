# how: rank
import faulthandler
import signal

print(
    [int(s) for s in signal.valid_signals() if s not in (9, 19) and signal.getsignal(s) is None],
    faulthandler.is_enabled(),
)
