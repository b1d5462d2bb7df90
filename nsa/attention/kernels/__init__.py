"""The branches of Native Sparse Attention as Triton kernels; `ops` is what the rest of the package calls.

`band` attends to bands of keys: the compressed and the sliding branch in one launch, and the selected branch where it
has so few blocks that a mask is faster. Otherwise `choose` selects blocks, `lists` inverts the selection, and `gather`
attends to what was selected. `gates` sums the branches (Eq. 5); `branches` maps each branch to its kernels. `node` is the
autograd node of eager mode, `ops` has the operators for torch.compile. `descriptors` describe tiles to Hopper's copy engine.

Scores are kept in base 2: `lse` is log2 of the sum of exp2(score * scale_log2).
No kernel uses atomics, and every sum has one order: the same inputs give the same bits.
"""
