"""The script that measures models for the planner, in small: its networks accept their inputs."""

import pytest
import torch

from benchmarks.denoisers import build_denoiser
from benchmarks.gpu_planner_measurements import DTYPE, SUBJECTS, TINY, decode, forward, measure_stage
from filmgate.catalog.loader import load_catalog, read_measured
from filmgate.pipeline.bench.vaes import build_vae


def test_a_toy_is_measured_in_the_form_that_the_planner_reads():
    with torch.no_grad():
        runs = [
            run
            for stage in ("forward", "decode")
            for run in measure_stage(TINY[0], stage, torch.device("cpu"))
        ]
    report = {"machine": {"gpu": "NVIDIA H200"}, "source": "a test", "as_of": "2026-11-18", "runs": runs}
    read = read_measured(report, "test.json")
    assert [(run.stage, run.width, run.frames) for run in read] == [("forward", 64, 9), ("decode", 64, 9)]


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.model)
def test_the_full_size_networks_of_a_catalog_model_accept_their_inputs(subject):
    """On the meta device, which computes shapes only."""
    assert load_catalog().video_model(subject.model).id == subject.model
    meta = torch.device("meta")
    width, height, frames = subject.clips[0]
    with torch.no_grad():
        forward(subject, subject.clips[0], build_denoiser(subject.denoiser, meta, DTYPE))()
        (clip,) = decode(subject, subject.clips[0], build_vae(subject.vae, meta, DTYPE))()
    assert clip.shape == (1, 3, frames, height, width)
