# how: rank
import os
import signal
import threading

import nets

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
got = []
thread = threading.Thread(target=lambda: got.append(int(signal.sigwait({signal.SIGUSR1}))))
thread.start()
nets.train(nets.Net())
os.kill(os.getpid(), signal.SIGUSR1)
thread.join()
print(got)
