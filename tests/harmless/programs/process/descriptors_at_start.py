# how: rank
import seen

seen.say(seen.descriptors())
