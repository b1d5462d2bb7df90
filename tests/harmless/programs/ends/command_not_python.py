# how: shell
# exits: 42
# alone
# line: echo from a shell; echo to stderr >&2; exit 42
