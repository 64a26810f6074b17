"""Amazon Comprehend's toxicity detection. It reads English and has no category for minors."""

from collections.abc import Iterator, Sequence
from typing import Any

from filmgate.admission.screening.base import Label
from filmgate.aws.clients import ClientOptions, Endpoint, open_client
from filmgate.aws.errors import AwsFailure, aws_errors
from filmgate.errors import ClassifierUnavailable
from filmgate.settings import ClassifierSettings

# Limits of DetectToxicContent.
MAX_SEGMENT_BYTES = 1000
MAX_SEGMENTS = 10

_CATEGORIES = {
    "SEXUAL": "sexual",
    "VIOLENCE_OR_THREAT": "violence",
    "GRAPHIC": "violence",
    "HATE_SPEECH": "hate",
    "HARASSMENT_OR_ABUSE": "hate",
}


class ComprehendClassifier:
    """Labels texts by DetectToxicContent. Scores of the threshold or more become labels."""

    def __init__(self, client: Any, threshold: float) -> None:
        self._client = client
        self._threshold = threshold

    @classmethod
    def open(cls, settings: ClassifierSettings) -> "ComprehendClassifier":
        endpoint = Endpoint(settings.region, settings.endpoint, "classifier.region")
        # One attempt: a second one would end after the time limit.
        options = ClientOptions(settings.timeout_seconds, settings.timeout_seconds, max_attempts=1)
        return cls(open_client("comprehend", endpoint, options), settings.threshold)

    @property
    def name(self) -> str:
        return "comprehend"

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(_CATEGORIES.values())

    def classify(self, texts: Sequence[str]) -> frozenset[Label]:
        segments = [segment for text in texts for segment in split(text)]
        found = set()
        for start in range(0, len(segments), MAX_SEGMENTS):
            batch = [{"Text": segment} for segment in segments[start : start + MAX_SEGMENTS]]
            with aws_errors("Comprehend", _to_error):
                answer = self._client.detect_toxic_content(TextSegments=batch, LanguageCode="en")
            found |= {
                _CATEGORIES[label["Name"]]
                for result in answer["ResultList"]
                for label in result["Labels"]
                if label["Name"] in _CATEGORIES and label["Score"] >= self._threshold
            }
        return frozenset(Label(f"{self.name}.{category}", category) for category in found)


def split(text: str) -> Iterator[str]:
    """Segments of at most MAX_SEGMENT_BYTES in UTF-8, at white space where there is any."""
    encoded = text.encode(errors="replace")
    while len(encoded) > MAX_SEGMENT_BYTES:
        end = encoded.rfind(b" ", 1, MAX_SEGMENT_BYTES)
        if end < 0:
            end = MAX_SEGMENT_BYTES
            while encoded[end] & 0xC0 == 0x80:  # not inside a character
                end -= 1
        yield encoded[:end].decode()
        encoded = encoded[end:]
    if encoded.strip():
        yield encoded.decode()


def _to_error(failure: AwsFailure) -> ClassifierUnavailable:
    return ClassifierUnavailable(failure.message)
