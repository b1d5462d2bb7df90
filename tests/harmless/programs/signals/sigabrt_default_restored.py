# how: rank
# exits: 134
import os
import resource
import signal

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print(signal.getsignal(signal.SIGABRT), signal.signal(signal.SIGABRT, signal.SIG_DFL), flush=True)
os.abort()
