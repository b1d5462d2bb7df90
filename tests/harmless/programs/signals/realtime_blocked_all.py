# how: rank
import signal

import nets

signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
print(nets.train(nets.Net())[0], sorted(int(s) for s in signal.sigpending()))
