# how: shell
# line: mkdir mine; echo 'raise ValueError("in sitecustomize")' > mine/sitecustomize.py; PYTHONPATH=$PYTHONPATH:mine RANK=0 WORLD_SIZE=1 python -c 'print("on")'
