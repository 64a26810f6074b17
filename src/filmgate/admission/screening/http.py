"""Any classifier with the API of OpenAI's moderations: `{"input": [...]}` in, scores by category out."""

import json
import ssl
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from filmgate.admission.screening.base import Label
from filmgate.errors import ClassifierUnavailable, SettingsError
from filmgate.settings import ClassifierSettings

_MAX_REPLY_BYTES = 1 << 20
# Categories of OpenAI, where their names differ from Filmgate's.
_CATEGORIES = {
    "sexual/minors": "minors",
    "self-harm": "self_harm",
    "self-harm/intent": "self_harm",
    "self-harm/instructions": "self_harm",
    "violence/graphic": "violence",
    "hate/threatening": "hate",
    "harassment": "hate",
    "harassment/threatening": "hate",
    "illicit/violent": "weapons",
}


class HttpClassifier:
    """A client of a moderations API. Scores of the threshold or more become labels."""

    def __init__(self, settings: ClassifierSettings, categories: frozenset[str]) -> None:
        if urlsplit(settings.url).scheme not in {"http", "https"}:
            raise SettingsError(
                f"expected an http or https URL, got {settings.url!r}", option="classifier.url"
            )
        key = _read_key(settings.key_file)
        self._settings = settings
        self._categories = categories
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=settings.timeout_seconds,
            # The host's certificates, which may include a private authority; httpx has its own bundle.
            verify=ssl.create_default_context(),
        )
        # Classifiers have no close method: the connections are closed with this object.
        weakref.finalize(self, self._client.close)

    @property
    def name(self) -> str:
        return "http"

    @property
    def categories(self) -> frozenset[str]:
        return self._categories

    def classify(self, texts: Sequence[str]) -> frozenset[Label]:
        body: dict[str, object] = {"input": list(texts)}
        if self._settings.model:
            body["model"] = self._settings.model
        results = _results(self._call(body), len(texts))
        found = {_CATEGORIES.get(name, name) for result in results for name in self._names(result)}
        return frozenset(Label(f"{self.name}.{category}", category) for category in found & self._categories)

    def _call(self, body: Mapping[str, object]) -> bytes:
        ends_at = time.monotonic() + self._settings.timeout_seconds
        reply = bytearray()
        try:
            with self._client.stream("POST", self._settings.url, json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise ClassifierUnavailable(f"the classifier answered HTTP {answer.status_code}")
                for chunk in answer.iter_bytes():
                    reply += chunk
                    if len(reply) > _MAX_REPLY_BYTES or time.monotonic() > ends_at:
                        raise ClassifierUnavailable("the answer of the classifier is too long or too slow")
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise ClassifierUnavailable(f"the classifier is unreachable ({type(exc).__name__})") from exc
        return bytes(reply)

    def _names(self, result: Mapping[str, Any]) -> Iterator[str]:
        """The categories found: by score, or by flag where there is no score."""
        scores, flags = result.get("category_scores") or {}, result.get("categories") or {}
        for name in scores.keys() | flags.keys():
            score = scores.get(name)
            if isinstance(score, int | float):
                if score >= self._settings.threshold:
                    yield name
            elif flags.get(name) is True:
                yield name


def _results(reply: bytes, count: int) -> list[Mapping[str, Any]]:
    """The result of each text. Raises ClassifierUnavailable for any other answer."""
    try:
        results = json.loads(reply)["results"]
        is_valid = len(results) == count and all(_is_result(result) for result in results)
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise ClassifierUnavailable("the classifier did not send results") from exc
    if not is_valid:
        raise ClassifierUnavailable(f"the classifier did not send {count} results with categories")
    return list(results)


def _is_result(result: object) -> bool:
    if not isinstance(result, dict):
        return False
    tables = [result[name] for name in ("categories", "category_scores") if result.get(name) is not None]
    return bool(tables) and all(isinstance(table, dict) for table in tables)


def _read_key(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"{path} cannot be read: {exc}", option="classifier.key_file") from exc
