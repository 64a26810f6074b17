"""The decision on a request's text: what the classifiers find, and the tenant's action for each category."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from filmgate.admission.screening.base import Classifier, Label
from filmgate.admission.screening.classifier import RulesClassifier
from filmgate.admission.screening.rules import RuleSet
from filmgate.errors import ClassifierUnavailable
from filmgate.jobs import Screening, ScreeningAction
from filmgate.telemetry.logs import Log

log = Log("screening")

_SEVERITY = (ScreeningAction.ALLOW, ScreeningAction.FLAG, ScreeningAction.REJECT)
_THREADS = 16


class Screener:
    """Applies the rules, then the classifier outside this process, if there is one. Keeps no text.

    The classifier has `seconds` to answer. The categories in `fail_closed` need its answer.
    """

    def __init__(
        self,
        rules: RuleSet,
        remote: Classifier | None = None,
        seconds: float = 0.0,
        fail_closed: frozenset[str] = frozenset(),
    ) -> None:
        self.rules = rules
        self._embedded = RulesClassifier(rules)
        self._remote = remote
        self._seconds = seconds
        self._fail_closed = fail_closed
        self._threads = ThreadPoolExecutor(_THREADS, "classifier") if remote is not None else None

    def screen(self, texts: Sequence[str], choices: Mapping[str, ScreeningAction]) -> Screening:
        """The strictest action of what was found; `choices` are the tenant's actions by category.

        Raises ClassifierUnavailable when a category that needs the classifier cannot be judged.
        """
        labels = self._embedded.classify(texts)
        decision = self._decide(labels, choices)
        if self._remote is None or decision.action is ScreeningAction.REJECT:
            return decision
        return self._decide(labels | self._classify_remotely(self._remote, texts, choices), choices)

    def _classify_remotely(
        self, remote: Classifier, texts: Sequence[str], choices: Mapping[str, ScreeningAction]
    ) -> frozenset[Label]:
        assert self._threads is not None
        answer = self._threads.submit(remote.classify, texts)
        try:
            return frozenset(
                label for label in answer.result(self._seconds) if label.category in self.rules.categories
            )
        except FutureTimeoutError as exc:
            answer.cancel()
            error, reason = ClassifierUnavailable("the classifier did not answer in time"), "timeout"
            error.__cause__ = exc
        except ClassifierUnavailable as exc:
            error, reason = exc, "failed"
        log.warning("classifier unavailable", error=error, reason=reason, provider=remote.name)
        needed = self._fail_closed & remote.categories & self.rules.categories.keys()
        if any(self._action(category, choices) is ScreeningAction.REJECT for category in needed):
            raise error
        return frozenset({Label(f"{remote.name}.{reason}", "unscreened")})

    def _decide(self, labels: frozenset[Label], choices: Mapping[str, ScreeningAction]) -> Screening:
        acted = [(label, self._action(label.category, choices)) for label in sorted(labels)]
        acted = [(label, action) for label, action in acted if action is not ScreeningAction.ALLOW]
        strictest = max((action for _, action in acted), key=_SEVERITY.index, default=ScreeningAction.ALLOW)
        return Screening(
            strictest,
            tuple(label.rule for label, _ in acted),
            tuple(sorted({label.category for label, action in acted if action is strictest})),
        )

    def _action(self, category: str, choices: Mapping[str, ScreeningAction]) -> ScreeningAction:
        default = self.rules.categories[category]
        return default.action if default.is_fixed else choices.get(category, default.action)
