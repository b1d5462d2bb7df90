# how: shell
# line: LD_PRELOAD=libm.so.6 RANK=0 WORLD_SIZE=1 python -c 'import os; print(os.environ["LD_PRELOAD"])'
