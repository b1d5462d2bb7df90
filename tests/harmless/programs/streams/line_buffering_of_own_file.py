# how: shell
# line: RANK=0 WORLD_SIZE=1 python -c 'import sys; print(sys.stdout.line_buffering, sys.stdout is sys.__stdout__)' > mine; cat mine
