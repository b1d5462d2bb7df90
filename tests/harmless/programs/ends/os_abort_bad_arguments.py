# how: rank
import os
import signal

for call in (lambda: os.abort(1), lambda: os.kill(1), lambda: os.kill(sig=0), lambda: signal.raise_signal()):
    try:
        call()
    except TypeError as error:
        print(error)
