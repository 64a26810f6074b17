"""Fast decoders: half precision, channels-last frames, causal convolutions by Winograd over time.

    latents -> stem -> [combine -> convolutions] ... -> head -> frames

`combine` is the one pass between two convolutions. It converts the feature maps of the last convolution to
frames (with bias and residual), normalises, activates, updates the causal cache, and writes the inputs of the
next convolution (passes.py). CogVideoX normalises over a whole chunk and needs two passes (group_passes.py).
docs/decoder.md lists the time of each part.
"""
