# how: shell
# slow
# alone
# line: true
