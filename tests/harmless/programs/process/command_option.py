# how: shell
# line: RANK=0 WORLD_SIZE=1 python -c 'import sys; print(sys.argv, __name__, "__file__" in globals())' x
