# how: many
# by-design: wrappers
import builtins
import os
import posix
import signal
import sys
import time

import _signal
import seen

names = [n for n in dir(posix) if hasattr(os, n) and callable(getattr(os, n))]
seen.say(sorted(n for n in names if getattr(os, n) is not getattr(posix, n)))
seen.say(
    sorted(
        n
        for n in dir(_signal)
        if hasattr(signal, n)
        and n in ("raise_signal", "pthread_kill", "alarm")
        and getattr(signal, n) is not getattr(_signal, n)
    )
)
seen.say(
    builtins.print is print,
    __builtins__ is not None,
    type(sys.exit).__name__,
    type(os._exit).__name__,
    type(print).__name__,
    type(time.sleep).__name__,
)
