# how: rank
# alone
import seen

seen.say(seen.next_descriptor())
