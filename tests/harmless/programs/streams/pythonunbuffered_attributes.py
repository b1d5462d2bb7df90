# how: rank
# env: PYTHONUNBUFFERED=1
import sys

print(sys.stdout.write_through, type(sys.stdout.buffer).__name__)
