# how: rank
import os
import sys
import tempfile

with tempfile.TemporaryFile() as file:
    keep = os.dup(1)
    os.dup2(file.fileno(), 1)
    print("python")
    sys.stdout.flush()
    os.system("echo shell")
    os.dup2(keep, 1)
    os.close(keep)
    file.seek(0)
    print(file.read())
