"""The diffusers lines of the README run on a GPU, with the model in the package."""

import pytest
import torch

from filmgate.models.names import shipped_folder
from tests.integration.test_readme import HUB_ID, PYTHON, SDK


@pytest.mark.parametrize("snippet", [text for text in PYTHON if text not in SDK])
def test_each_diffusers_snippet_runs_on_the_gpu(snippet, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(snippet.replace(HUB_ID, str(shipped_folder("flipbook"))), "README.md", "exec"), names)
    assert names["pipe"].device.type == "cuda"
    assert names["latents"].dtype == torch.bfloat16
    assert (tmp_path / "clip.mp4").stat().st_size > 0
    assert "3)" in capsys.readouterr().out
