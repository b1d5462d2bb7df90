# how: rank
import os
import sys

if os.environ.get("AGAIN"):
    print("again", sys.argv)
else:
    os.environ["AGAIN"] = "1"
    print("first", flush=True)
    os.execv(sys.executable, [sys.executable, *sys.argv, "more"])
