# how: rank
# alone
import os

try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("no child of anybody's")
