"""The Classifier port: which categories a text belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, order=True)
class Label:
    """A category found in a text, and the id of the rule that found it; never the text."""

    rule: str
    category: str


class Classifier(Protocol):
    """Labels texts. Safe to call from several threads; keeps and logs no text."""

    @property
    def name(self) -> str: ...

    @property
    def categories(self) -> frozenset[str]:
        """The categories it can find."""
        ...

    def classify(self, texts: Sequence[str]) -> frozenset[Label]:
        """The labels of all texts together. Raises ClassifierUnavailable when there is no answer."""
        ...
