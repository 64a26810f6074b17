"""`filmgate worker --model`: a model without a name is called by the last part of its location."""

import pytest

from filmgate.cli.worker import parse_models


@pytest.mark.parametrize(
    ("given", "models"),
    [
        (["flipbook"], {"flipbook": "flipbook"}),
        (["/models/wan"], {"wan": "/models/wan"}),
        (["/models/wan/"], {"wan": "/models/wan/"}),
        (["Wan-AI/Wan2.1-T2V"], {"Wan2.1-T2V": "Wan-AI/Wan2.1-T2V"}),
        (["wan=/models/2.1", "tiny=miniature"], {"wan": "/models/2.1", "tiny": "miniature"}),
    ],
)
def test_a_model_without_a_name_is_called_by_its_last_part(given, models):
    assert parse_models(given) == models
