"""Winograd convolutions by code of our own: 3 x 3 windows in a quarter of the multiplications, or in 4 of 9.

`choice` says which convolutions gain by it, `kernel` makes the operation of one, `weights` its weights. The code is
written as LLVM assembly: `transforms` from tiles of pixels to matrices and back, `products` of these matrices with the
weights, and who of a team of threads does what; `record` is what it reads, `algorithm` the numbers that are in it.
"""
