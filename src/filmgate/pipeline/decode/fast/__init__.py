"""Decoders at the chip's speed: half precision, frames last-channel, causal convolutions by Winograd.

    latent frame -> conv_in -> [combine -> convolutions] ... -> head -> frames
                                   ^
    combine: one pass that adds up the last convolution's maps (and bias, and residual), normalises,
    activates, moves the causal cache on, and writes what the next convolution reads

In Wan everything between two convolutions is one `combine` (passes.py). CogVideoX normalises over a whole
chunk, so there it is `gather`, `settle` and `condition` (group_passes.py). docs/decoder.md has where each
millisecond goes.
"""
