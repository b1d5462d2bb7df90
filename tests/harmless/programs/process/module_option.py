# how: shell
# line: mkdir pkg; echo 'import sys; print(__name__, __spec__.name, sys.argv[1:])' > pkg/__main__.py; RANK=0 WORLD_SIZE=1 python -m pkg a b
