# how: rank
# needs: tqdm rich
from rich.console import Console
from tqdm import tqdm

for _ in tqdm(range(3), ncols=60, mininterval=1e9, bar_format="{n}/{total}"):
    pass
Console(width=60).print("[bold]bold[/bold]")
