"""Transformer blocks with fewer passes over memory: own kernels between the matrix products."""
