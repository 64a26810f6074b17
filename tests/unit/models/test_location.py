import pytest

from filmgate.cli.worker import find_models
from filmgate.errors import UsageError
from filmgate.models.weights.location import ModelLocation, is_remote, parse_location


@pytest.mark.parametrize("text", ["s3://film/models/wan2.1/v3/", "s3://film/models/wan2.1/v3"])
def test_a_url_names_bucket_model_and_version(text):
    location = parse_location(text)
    assert location == ModelLocation("film", "models/wan2.1/v3", "wan2.1", 3)
    assert location.url == "s3://film/models/wan2.1/v3/"
    assert location.key("vae/config.json") == "models/wan2.1/v3/vae/config.json"


@pytest.mark.parametrize(
    "text",
    [
        "s3://film/models/wan/", "s3://film/v1/", "s3://film/models/wan/v0", "s3://film/models/wan/vx",
        "s3://film/models/../secrets/v1", "s3:///models/wan/v1", "s3://film//wan/v1", "s3://FILM/wan/v1",
        "s3://film/models/wan/v1/vae", "https://film/wan/v1", "s3://film/models/a b/v1", "",
    ],
)  # fmt: skip
def test_any_other_text_is_a_usage_error(text):
    with pytest.raises(UsageError, match="s3://BUCKET/models/NAME/vN/"):
        parse_location(text)


def test_only_s3_urls_are_remote():
    assert is_remote("s3://film/models/wan/v1")
    assert not any(map(is_remote, ["flipbook", "/models/wan", "Wan-AI/Wan2.1", "./s3:"]))


def test_a_worker_names_a_model_without_a_name_by_its_url():
    url = "s3://film/models/wan2.1/v3/"
    assert find_models([url]) == {"wan2.1": url}
    assert find_models([f"video={url}", "flipbook"]) == {"video": url, "flipbook": "flipbook"}
