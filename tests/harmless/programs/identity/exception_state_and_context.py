# how: many
import sys

import seen
import torch

try:
    int("x")
except ValueError:
    print("while handling")
    torch.save({}, "x.pt")
    try:
        torch.load("nowhere")
    except FileNotFoundError as error:
        seen.say(
            type(error.__context__).__name__,
            error.__cause__,
            len(error.__traceback__.tb_frame.f_code.co_name),
        )
    seen.say(sys.exc_info()[0].__name__)
seen.say(sys.exc_info())
