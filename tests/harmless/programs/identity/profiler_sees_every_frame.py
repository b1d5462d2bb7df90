# how: many
# by-design: frames
import cProfile
import pstats

import nets

model = nets.Net()
nets.train(model)
with cProfile.Profile() as profile:
    nets.train(model, 3)
print(any("nsadiag" in file for file, _, _ in pstats.Stats(profile).stats))
