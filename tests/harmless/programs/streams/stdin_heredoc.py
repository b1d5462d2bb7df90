# how: shell
# alone
# line: RANK=0 WORLD_SIZE=1 python - one two < train.py
import sys

print("from stdin", sys.argv)
