"""Asks the planner random questions and checks the properties that every answer must have.

A subject is a module, video.py or llm.py. It draws questions, plans them, lists the `problems` of an answer
and `harder` questions, which may not cost less. Its `overrun` is the worst latency in a simulation with other
arrivals, as a multiple of its limit, and None without a limit.
"""

from dataclasses import dataclass, replace
from datetime import date

from filmgate.planner.fleet.sizing import MAX_LATE
from filmgate.planner.report.page import to_page
from filmgate.planner.report.record import to_record
from filmgate.planner.report.tables import tables

REGIONS = ("us-east-1", "us-west-2", "eu-central-1", "eu-north-1", "ap-northeast-1", "sa-east-1")
CHECK_SEED = 1000
PRICE_INCREASE = 1.2
RECORD_DAY = date(2026, 11, 16)  # the date in the compared reports; any day does
ROUNDED = 1e-4  # JSON has five digits
ROUNDING = 1e-9  # of sums of floats: a harder question may not cost less by more than this share


@dataclass
class PlanCheck:
    """The result of many random questions, counted while they are asked.

    `late` verdicts miss their target in a simulation with arrivals that the planner did not use, at the upper
    end of the interval and with the spare machines lost. `problems` are properties that do not hold.
    """

    questions: int = 0
    possible: int = 0
    with_target: int = 0
    late: int = 0
    late_unflagged: int = 0
    flagged: int = 0
    compared: int = 0
    problems: tuple[str, ...] = ()

    @property
    def late_share(self):
        return self.late / self.with_target if self.with_target else 0.0

    @property
    def passes(self):
        """Every property holds, at least 95 % of the verdicts are feasible, and the others are flagged."""
        return not self.problems and self.late_share <= MAX_LATE and not self.late_unflagged


def check_answers(subject, catalog, calibration, questions):
    """Asks this many random questions and checks every answer, alone and against harder questions."""
    check, expensive = PlanCheck(questions), with_higher_prices(catalog)
    for seed in range(questions):
        question = subject.draw(catalog, seed)
        answer = subject.plan(question, catalog, calibration)
        if not answer.is_possible:
            continue
        check.possible += 1
        found = list(subject.problems(question, answer))
        harder = [(name, other, catalog) for name, other in subject.harder(question)]
        for name, other, prices in (*harder, ("higher prices", question, expensive)):
            check.compared += 1
            before, after = answer.cost.usd_per_day, subject.usd_per_day(other, prices, calibration)
            if before is not None and after is not None and after < before * (1 - ROUNDING):
                found.append(f"{name} costs {after:.2f} per day instead of {before:.2f}")
        check.problems += tuple(f"{subject.NAME} question {seed}: {problem}" for problem in found)
        overrun = subject.overrun(question, answer, catalog, calibration, CHECK_SEED + seed)
        if overrun is not None:
            is_late, is_flagged = overrun > 1 + ROUNDING, answer.fleet.size.late_runs > 0
            check.with_target += 1
            check.late += is_late
            check.flagged += is_flagged
            check.late_unflagged += is_late and not is_flagged
    return check


def find_bill_errors(answer):
    """Where bill, fleet and ranking contradict each other."""
    cost, size = answer.cost, answer.fleet.size
    parts = sum(part.usd_per_day for part in cost.purchase)
    if not is_close(parts, cost.usd_per_day):
        yield f"purchases of {parts} per day and a bill of {cost.usd_per_day}"
    if sum(part.instances for part in cost.purchase) != size.instances:
        yield "the purchases are not the machines of the fleet"
    if answer.options[0].usd_per_day != min(option.usd_per_day or 0.0 for option in answer.options):
        yield "the first option is not the cheapest"


def find_report_differences(answer, figures):
    """Figures that text, page and record do not share, a verdict that the record lacks, and other JSON."""
    texts = {
        "text": "\n".join(cell for table in tables(answer) for row in table.rows for cell in row),
        "page": to_page(answer, RECORD_DAY).replace("\u00a0", " "),
        "record": to_record(answer, RECORD_DAY),
    }
    for name, figure in figures.items():
        yield from (
            f"{name} {figure} is not in the {kind}" for kind, text in texts.items() if figure not in text
        )
    if answer.verdict not in texts["record"]:
        yield "the verdict is not in the record"
    document = answer.as_json()
    size = ("instances", "spare_instances", "replicas", "latency_p95")
    usd = ("usd_per_day", "usd_per_month", "usd_per_clip", "usd_per_million_tokens")
    for part, fields, names in (("fleet", answer.fleet.size, size), ("cost", answer.cost, usd)):
        for name in names:
            written, value = document[part][name], getattr(fields, name)
            if written != value and not is_close(written, value):
                yield f"{name} is {written} in JSON and {value} in the answer"


def with_higher_prices(catalog):
    """The catalog with higher prices of every machine."""
    fields = ("on_demand", "spot_min", "spot_median", "spot_max")

    def scaled(price):
        known = {name: getattr(price, name) for name in fields}
        return replace(price, **{name: usd and usd * PRICE_INCREASE for name, usd in known.items()})

    return catalog.with_entries(prices=[scaled(price) for price in catalog.prices.values()])


def is_close(value, other):
    if value is None or other is None:
        return False
    return abs(value - other) <= ROUNDED * max(abs(value), abs(other))
