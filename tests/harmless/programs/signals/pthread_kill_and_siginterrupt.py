# how: rank
import signal
import threading

got = []
signal.signal(signal.SIGUSR1, lambda n, f: got.append(n))
signal.siginterrupt(signal.SIGUSR1, False)
signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
signal.pthread_kill(thread_id=threading.get_ident(), signalnum=0) if False else None
print(got)
