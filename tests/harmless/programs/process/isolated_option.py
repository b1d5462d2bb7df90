# how: shell
# line: RANK=0 WORLD_SIZE=1 python -I -c 'import sys; print(sys.flags.isolated, sys.path[0])'
