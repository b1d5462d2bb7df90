# how: rank
# env: PYTHONIOENCODING=latin-1:replace
import sys

print(sys.stdout.encoding, sys.stdout.errors, "\u2603 caf\xe9")
