# how: shell
# exits: 1
# line: printf 'def f(:\n' > bad.py; RANK=0 WORLD_SIZE=1 python bad.py
