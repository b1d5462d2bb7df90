# how: shell
# slow
# line: for o in -OO -P "-X tracemalloc=3" "-X no_debug_ranges" "-X frozen_modules=off" "-X int_max_str_digits=700" "-X warn_default_encoding -W error::EncodingWarning:__main__" "-bb -W error::BytesWarning:__main__" "-W error::ResourceWarning:__main__ -X dev" "-s -S -P -I -u"; do case "$o" in *-S*) p='import sys; print(sys.flags.no_site, sys.flags.isolated, sorted(m for m in sys.modules if m.startswith("nsadiag")))';; *) p='exec(open("train.py", encoding="utf-8").read())';; esac; echo "== $o"; RANK=0 WORLD_SIZE=1 python $o -c "$p"; echo "ended with $?"; done
import os
import sys
import traceback

sys.path.insert(0, os.getcwd())
import nets
import torch

model = nets.Net()
loss, optimizer = nets.train(model, 40)
torch.save(model.state_dict(), "x.pt")
print(loss, nets.digest(model), sys.flags, __debug__, torch.nn.Module.__doc__ is None)
print(sys._xoptions, sys.warnoptions, sorted(torch.load("x.pt")))
try:
    model(torch.ones(2, 3))
except RuntimeError as error:
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    print(names, [line for line in traceback.format_exc().splitlines() if "^" in line] != [])
