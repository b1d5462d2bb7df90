# how: rank
# exits: 1
import nowhere_to_be_found
