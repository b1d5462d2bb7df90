# how: rank
error = ValueError("bad")
error.add_note("looked in two places")
raise error
