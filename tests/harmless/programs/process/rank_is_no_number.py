# how: shell
# line: RANK=first WORLD_SIZE=1 python -c 'print("ran")'
