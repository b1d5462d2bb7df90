# how: rank
import faulthandler
import os
import signal

with open("later", "a+") as file:  # faulthandler writes in pieces, each wherever the last seek went
    faulthandler.dump_traceback_later(0.05, file=file, exit=False)
    while not file.seek(0) and "Timeout" not in file.read():
        pass
    faulthandler.cancel_dump_traceback_later()
with open("registered", "w+") as file:
    faulthandler.register(signal.SIGUSR1, file=file)
    os.kill(os.getpid(), signal.SIGUSR1)
    file.seek(0)
    print("Current thread" in file.read(), faulthandler.unregister(signal.SIGUSR1))
for name in ("later", "registered"):
    os.unlink(name)
