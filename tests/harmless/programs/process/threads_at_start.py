# how: rank
import seen

seen.say(seen.threads(), seen.native_threads())
