# how: rank
import seen

seen.say("ran")
