# how: shell
# slow
# alone
# line: echo one; kill -9 $$
