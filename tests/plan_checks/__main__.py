"""`make plan-check`: asks random questions, and writes the validation page with their figures.

Exits with 1 if a property does not hold, or if too many verdicts are late.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from filmgate.catalog.loader import load_calibration, load_catalog
from filmgate.planner.validation.page import to_validation_page
from filmgate.planner.validation.validate import validate
from tests.plan_checks import llm, video
from tests.plan_checks.check import check_answers

NOTE = (
    "`make plan-check` asks random questions. Each verdict is simulated again with arrivals that the planner "
    "did not use, at the upper end of the interval and with the spare machines lost. A flagged verdict "
    "says that some simulations miss the target. Harder questions have more clips, a tighter target, more "
    "spare machines, separate tenants or higher prices, and must never cost less. Text, JSON, page "
    "and record must state the same numbers, and only what Filmgate runs may be recommended. Harder "
    "questions about language models have more requests, an earlier first token, less time between tokens, "
    "more spare machines or higher prices."
)
FIGURES = {
    "questions": lambda check: check.questions,
    "possible": lambda check: check.possible,
    "verdicts with a latency target": lambda check: check.with_target,
    "feasible in the second simulation": lambda check: f"{1 - check.late_share:.1%}",
    "flagged as tight": lambda check: check.flagged,
    "late and not flagged": lambda check: check.late_unflagged,
    "comparisons with a harder question": lambda check: check.compared,
    "properties that do not hold": lambda check: len(check.problems),
}


def section(checks):
    """The figures as Markdown."""
    rows = [f"| {name} | {' | '.join(str(of(check)) for check in checks)} |" for name, of in FIGURES.items()]
    head = ["| figure | video | language models |", "|---|---|---|"]
    return "\n".join(["## Random questions", "", NOTE, "", *head, *rows])


def main(questions, page):
    catalog, calibration = load_catalog(), load_calibration()
    checks = [check_answers(subject, catalog, calibration, questions) for subject in (video, llm)]
    today = datetime.now(UTC).date().isoformat()
    page.write_text(to_validation_page(validate(catalog, today), section(checks)))
    for check in checks:
        sys.stdout.write("\n".join((*check.problems, f"{check}\n")))
    return 0 if all(check.passes for check in checks) else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), Path(sys.argv[2])))
