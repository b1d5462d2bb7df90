# how: shell
# line: env -u HOME RANK=0 WORLD_SIZE=1 python -c 'print("ran")'
