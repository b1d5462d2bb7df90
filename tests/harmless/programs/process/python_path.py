# how: rank
# by-design: variables
# env: PYTHONPATH=$PWD/more:/nowhere
import sys

print([p for p in sys.path if "nsadiag" not in p][:4])
