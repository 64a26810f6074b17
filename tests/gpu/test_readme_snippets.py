"""The diffusers lines of the README run on a GPU: with the model in the package, and with a full-size Wan.

python -m benchmarks.random_wan FOLDER --text-layers 2
FILMGATE_TEST_WAN=FOLDER pytest tests/gpu/test_readme_snippets.py ...
"""

import os

import pytest
import torch

from filmgate.models.names import shipped_folder
from tests.blocks import HUB_ID, PYTHON, SDK

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
MODELS = [str(shipped_folder("flipbook")), *filter(None, [os.environ.get("FILMGATE_TEST_WAN")])]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("snippet", [text for text in PYTHON if text not in SDK])
def test_each_diffusers_snippet_runs_on_the_gpu(snippet, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    few = snippet.replace(
        "num_frames=33", "num_frames=33, num_inference_steps=4"
    )  # a few seconds, not a minute
    exec(compile(few.replace(HUB_ID, model), "README.md", "exec"), names)
    pipe = names["pipe"]
    assert {pipe.device.type, names["latents"].device.type} == {"cuda"}
    assert {pipe.vae.dtype, pipe.transformer.dtype} == {torch.bfloat16}
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    assert "3)" in capsys.readouterr().out
