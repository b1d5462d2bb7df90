# how: rank -W error
import seen

seen.say("no warning of anybody's")
