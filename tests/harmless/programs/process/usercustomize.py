# how: shell
# alone
# slow
# line: d=$(python -c 'import site; print(site.getusersitepackages())'); mkdir -p $d; echo 'print("user customized")' > $d/usercustomize.py; PYTHONNOUSERSITE= RANK=0 WORLD_SIZE=1 python -c 'print("on")'
