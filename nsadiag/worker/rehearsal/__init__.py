"""A rank of a rehearsal: each call that communicates is compared with its peers' before it is made."""
