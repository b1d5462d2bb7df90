# how: rank
import nets
import seen

nets.train(nets.Net())
seen.say(seen.threads(), seen.native_threads())
