# how: shell
# exits: 2
# line: RANK=0 WORLD_SIZE=1 python -c 'print("first")'; RANK=0 WORLD_SIZE=1 python -c 'print("second"); raise SystemExit(2)'
