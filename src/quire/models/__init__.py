"""Model architectures: one generic decoder, and a short file of differences for each.

`registry`, `memory` and the architecture files are free of torch.
"""
