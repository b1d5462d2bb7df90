# how: rank
import nowhere_to_be_found
