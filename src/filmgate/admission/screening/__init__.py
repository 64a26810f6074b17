"""Prompt screening: which categories a prompt belongs to, and what the tenant wants done. No text is kept."""

from filmgate.admission.screening.base import Classifier
from filmgate.admission.screening.decision import Screener
from filmgate.admission.screening.rules import RuleSet, open_rules
from filmgate.aws.clients import check_boto3
from filmgate.errors import SettingsError
from filmgate.settings import ClassifierSettings
from filmgate.settings.wording import parse_names

__all__ = [
    "Classifier",
    "RuleSet",
    "Screener",
    "open_classifier",
    "open_rules",
    "open_screener",
]


def open_screener(rules_file: str, settings: ClassifierSettings) -> Screener:
    """The rules, and the configured classifier behind them. Raises SettingsError."""
    rules = open_rules(rules_file)
    names = parse_names(settings.fail_closed)
    if unknown := names - rules.categories.keys():
        raise SettingsError(f"no category is named {min(unknown)}", option="classifier.fail_closed")
    return Screener(rules, open_classifier(settings, rules), settings.timeout_seconds, names)


def open_classifier(settings: ClassifierSettings, rules: RuleSet) -> Classifier | None:
    """The classifier outside this process; None if it is disabled. Raises SettingsError."""
    match settings.kind:
        case "disabled":
            return None
        case "http":
            from filmgate.admission.screening.http import HttpClassifier

            return HttpClassifier(settings, frozenset(rules.categories))
        case "comprehend":
            check_boto3("classifier.kind")
            from filmgate.admission.screening.comprehend import ComprehendClassifier

            return ComprehendClassifier.open(settings)
