"""The kernels: Triton source, which a GPU's compiler or Triton's interpreter runs.

A row's result is the same bits in every batch. A program computes rows in tiles of one fixed
height, sums in one fixed order, and never shares a sum with other programs: long sums are cut at
fixed places, and the parts are added in their order, by one program or by a second kernel.
"""
