# how: shell
# exits: 137
# slow
# alone
# line: echo one; kill -9 $$
