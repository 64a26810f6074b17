"""The decision on a request's text: the matching rules and the tenant's action for their categories."""

from collections.abc import Iterator, Mapping, Sequence

from filmgate.admission.screening.folding import (
    has_bidi_controls,
    has_hidden_characters,
    readings,
    visible_text,
)
from filmgate.admission.screening.personal import personal_data
from filmgate.admission.screening.rules import RuleSet
from filmgate.jobs import Screening, ScreeningAction

_SEVERITY = (ScreeningAction.ALLOW, ScreeningAction.FLAG, ScreeningAction.REJECT)
_PAYMENT = {"card", "iban"}


class Screener:
    """Applies screening rules. Keeps no text."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules

    def screen(self, texts: Sequence[str], choices: Mapping[str, ScreeningAction]) -> Screening:
        """The strictest action of the matching rules; `choices` are the tenant's actions by category."""
        matched = sorted({match for text in texts for match in self._matches(text)})
        acted = [(rule, self._action(category, choices)) for rule, category in matched]
        acted = [(rule, action) for rule, action in acted if action is not ScreeningAction.ALLOW]
        strictest = max((action for _, action in acted), key=_SEVERITY.index, default=ScreeningAction.ALLOW)
        return Screening(strictest, tuple(rule for rule, _ in acted))

    def _action(self, category: str, choices: Mapping[str, ScreeningAction]) -> ScreeningAction:
        default = self._rules.categories[category]
        return default.action if default.is_fixed else choices.get(category, default.action)

    def _matches(self, text: str) -> Iterator[tuple[str, str]]:
        """(rule id, category) of every match."""
        for kind in personal_data(visible_text(text)):
            yield f"personal.{kind}", "payment_data" if kind in _PAYMENT else "contact_data"
        if has_bidi_controls(text):
            yield "obfuscation.bidi", "obfuscation"
        if has_hidden_characters(text):
            yield "obfuscation.hidden", "obfuscation"
        forms = readings(text)
        for rule in self._rules.rules:
            if any(rule.matches(form) for form in forms):
                yield rule.id, rule.category
