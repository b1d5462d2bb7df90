# how: rank
import seen

for number, handler in seen.handlers().items():
    seen.say(number, handler)
seen.say(seen.kernel_signals())
