"""`filmgate worker --model`: a model without a name is called by the last part of its location."""

import pytest

from filmgate.cli.worker import parse_models


@pytest.mark.parametrize(
    ("given", "models"),
    [
        (["flipbook"], {"flipbook": "flipbook"}),
        (["/models/wan"], {"wan": "/models/wan"}),
        (["/models/wan/"], {"wan": "/models/wan/"}),
        (["Some-Team/Film1.0-T2V"], {"Film1.0-T2V": "Some-Team/Film1.0-T2V"}),
        (["Some-Team/Film@abc123"], {"Film": "Some-Team/Film@abc123"}),
        (["wan=/models/2.1", "tiny=miniature"], {"wan": "/models/2.1", "tiny": "miniature"}),
    ],
)
def test_a_model_without_a_name_is_called_by_its_last_part(given, models):
    assert parse_models(given) == models
