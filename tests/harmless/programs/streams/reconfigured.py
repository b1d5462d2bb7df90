# how: rank
# slow
# alone
import sys

sys.stdout.reconfigure(encoding="latin-1", errors="replace", newline="\r\n", line_buffering=False)
print("\u2603 caf\xe9")
