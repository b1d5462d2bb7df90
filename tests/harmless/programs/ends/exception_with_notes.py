# how: rank
# exits: 1
error = ValueError("bad")
error.add_note("looked in two places")
raise error
