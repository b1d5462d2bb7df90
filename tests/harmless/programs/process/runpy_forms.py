# how: rank
import runpy
import sys
import textwrap

with open("inner.py", "w") as file:
    file.write(
        textwrap.dedent("""
        import sys, nets
        print(__name__, __file__, sys.argv, nets.train(nets.Net())[0])
        value = 3
        if "fail" in sys.argv: raise KeyError("inner")
    """)
    )
print(runpy.run_path("inner.py", {"given": 1}, "__main__")["value"])
print(sorted(k for k in runpy.run_module("inner", alter_sys=True) if not k.startswith("__")))
sys.argv.append("fail")
try:
    runpy.run_path("inner.py", run_name="__main__")
except KeyError as error:
    trace, names = error.__traceback__, []
    while trace:
        names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    print(error, names)
print(sys.modules["__main__"].__file__)
