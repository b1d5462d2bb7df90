# how: rank
for n in range(5):
    print(f"\r{n} of 5", end="", flush=True)
print()
