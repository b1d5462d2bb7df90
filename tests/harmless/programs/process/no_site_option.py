# how: shell
# line: RANK=0 WORLD_SIZE=1 python -S -c 'import sys; print(sys.flags.no_site, "site" in sys.modules)'
