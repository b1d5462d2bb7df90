# how: rank
# needs: hypothesis
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(database=None, derandomize=True, max_examples=20, deadline=None)
@given(st.integers())
def check(n):
    assert n * 2 == n + n


check()
print("held")
