"""What a node must have installed."""

from filmgate.catalog.gpus import Gpu
from filmgate.planner.fleet.answer import NodeSoftware


def node_software(gpu: Gpu) -> NodeSoftware:
    return NodeSoftware(
        min_driver=gpu.min_driver,
        min_cuda=gpu.min_cuda,
        needs_open_modules=gpu.needs_open_modules,
        karpenter_gpu_name=gpu.karpenter_name,
        nvenc=gpu.nvenc,
        encode_on="CPU: the GPU has no encoder" if gpu.nvenc == 0 else "GPU or CPU",
    )
