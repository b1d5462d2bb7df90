# how: rank
import os
import signal

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
os.kill(os.getpid(), signal.SIGUSR1)
os.kill(os.getpid(), signal.SIGUSR2)
print(
    sorted(int(s) for s in signal.sigpending()),
    int(signal.sigwait({signal.SIGUSR1})),
    signal.sigtimedwait({signal.SIGUSR2}, 1).si_signo,
)
