"""What `filmgate doctor` checks of the classifier: one answer to a harmless text."""

import time
from collections.abc import Iterator

from filmgate.admission.screening import open_classifier, open_rules
from filmgate.errors import ClassifierUnavailable, SettingsError
from filmgate.settings import ClassifierSettings
from filmgate.telemetry.findings import Finding, Verdict

_SUBJECT = "classifier"
_TEXT = "a red ball on the grass"


def examine_classifier(rules_file: str, settings: ClassifierSettings) -> Iterator[Finding]:
    """One finding; no finding if no classifier is configured."""
    try:
        classifier = open_classifier(settings, open_rules(rules_file))
        if classifier is None:
            return
        started = time.monotonic()
        classifier.classify([_TEXT])
    except SettingsError as exc:
        yield Finding(_SUBJECT, Verdict.FAIL, str(exc), f"set {exc.option}")
    except ClassifierUnavailable as exc:
        remedy = "check classifier.url, classifier.key_file, classifier.region and the network"
        yield Finding(_SUBJECT, Verdict.FAIL, str(exc), remedy)
    else:
        seconds = time.monotonic() - started
        yield Finding(_SUBJECT, Verdict.OK, f"{classifier.name} answered in {1000 * seconds:.0f} ms")
