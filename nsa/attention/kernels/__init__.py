"""The branches of Native Sparse Attention as Triton kernels; `ops` is what the rest of the package calls.

`band` serves the compressed and the sliding branch, each of its kernels both in one launch, and the selected one
where few blocks make that the faster way; `selection` chooses blocks, `selected` attends to them, `gates` sums the
branches; `branches` says which serves which. `nodes` are the steps of autograd in eager mode, `ops` the operators
for torch.compile. Where tiles come by `descriptors`, Hopper's copy engine fetches them.
Scores are kept in base 2: `lse` is log2 of the sum of exp2(score * scale_log2).
No kernel uses atomics, and every sum has one order: the same inputs give the same bits.
"""
