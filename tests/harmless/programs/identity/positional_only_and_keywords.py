# how: many
import os
import signal

import seen

tries = {
    "kill keyword": lambda: os.kill(pid=os.getpid(), signal=0),
    "kill position": lambda: os.kill(os.getpid(), 0),
    "killpg": lambda: os.killpg(os.getpgid(0), 0),
    "kill text": lambda: os.kill("x", 0),
    "kill float": lambda: os.kill(1.5, 0),
    "raise keyword": lambda: signal.raise_signal(signalnum=0),
    "raise": lambda: signal.raise_signal(10**9),
    "pthread_kill": lambda: signal.pthread_kill(0, "x"),
}
for name, attempt in tries.items():
    try:
        seen.say(name, attempt())
    except Exception as error:
        seen.say(name, type(error).__name__, error)
