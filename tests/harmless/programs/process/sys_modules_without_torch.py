# how: python
import sys

print(
    sorted(
        m
        for m in sys.modules
        if m.partition(".")[0]
        in ("torch", "numpy", "pandas", "psutil", "rich", "typer", "json", "logging", "asyncio")
    )
)
