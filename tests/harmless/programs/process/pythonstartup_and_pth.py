# how: shell
# line: python -m site > /dev/null; RANK=0 WORLD_SIZE=1 python -c 'import site; print(site.ENABLE_USER_SITE)'
