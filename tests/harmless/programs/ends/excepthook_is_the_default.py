# how: rank
import sys
import threading

print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__)
print(sys.excepthook.__name__, sys.excepthook.__module__)
