# how: shell
# line: RANK=0 WORLD_SIZE=1 TMPDIR=/nowhere python -c 'print("ran")'
