# how: rank
# slow
# alone
import io
import sys

raw = sys.stdout.detach()
sys.stdout = io.TextIOWrapper(raw, encoding="latin-1", line_buffering=True)
print("caf\xe9")
