"""LoRA adapters with random factors, as safetensors files."""

import torch
from safetensors.torch import save_file


def save_lora(file, network, layers, rank=2, seed=0, metadata=None, component="transformer"):
    """Save factors for these layers of a network, large enough to change a clip."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in layers:
        rows, columns = network.get_submodule(layer).weight.shape
        weights[f"{component}.{layer}.lora_A.weight"] = torch.randn(rank, columns, generator=generator)
        weights[f"{component}.{layer}.lora_B.weight"] = torch.randn(rows, rank, generator=generator)
    save_file(weights, file, metadata)
    return weights
