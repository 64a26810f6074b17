"""`--lora` of `filmgate generate`."""

import pytest

from filmgate.cli.lora import read_adapters
from filmgate.errors import UsageError
from filmgate.models.adapters import parse_adapters

FILE = "pytorch_lora_weights.safetensors"  # the name that diffusers gives to every adapter


@pytest.fixture
def files(tmp_path):
    places = [tmp_path / name / FILE for name in ("one", "two")]
    for place in places:
        place.parent.mkdir()
        place.touch()
    return [str(place) for place in places]


def test_two_files_of_the_same_name_are_two_adapters(files):
    registry, field = read_adapters([files[0], f"{files[1]}:0.5"], "wan", "")
    chosen = parse_adapters(field)
    assert [registry.find(each.name).location for each in chosen] == files
    assert [each.scale for each in chosen] == [None, 0.5]


def test_one_file_is_named_once(files):
    _, field = read_adapters([files[0], files[0]], "wan", "")
    with pytest.raises(UsageError, match="each once"):
        parse_adapters(field)


def test_a_file_does_not_replace_an_adapter_of_the_installation(tmp_path, files):
    cards = tmp_path / "adapters.toml"
    cards.write_text('[pytorch_lora_weights]\nmodel = "wan"\nlocation = "/known.safetensors"\n')
    registry, field = read_adapters(["pytorch_lora_weights", files[0]], "wan", str(cards))
    locations = [registry.find(each.name).location for each in parse_adapters(field)]
    assert locations == ["/known.safetensors", files[0]]
