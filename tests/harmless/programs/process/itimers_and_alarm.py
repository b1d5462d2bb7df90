# how: rank
import signal

print(
    signal.getitimer(signal.ITIMER_REAL),
    signal.getitimer(signal.ITIMER_PROF),
    signal.getitimer(signal.ITIMER_VIRTUAL),
    signal.alarm(0),
)
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.set_wakeup_fd(-1))
