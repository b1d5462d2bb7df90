# how: rank
import threading

threading.excepthook = lambda args: print("hook", args.exc_type.__name__, args.thread.name, flush=True)
thread = threading.Thread(target=lambda: [][1], name="t")
thread.start()
thread.join()
