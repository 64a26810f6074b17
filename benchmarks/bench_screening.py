"""Screening by the shipped rules: obfuscations that pass, false alarms, and CPU time.

The rules were written with the prompts of `tests.screening_corpus` in view. `tests.screening_held_out` has
prompts that they were not tuned on: its false alarms are what to expect of other texts.
"""

import time
from collections.abc import Iterable

from benchmarks.report import Figures, JsonFlag, print_report, run
from filmgate.admission.screening import Screener, open_rules
from filmgate.jobs import ScreeningAction
from tests.screening_corpus import OBFUSCATIONS, PHRASES, obfuscated, ordinary
from tests.screening_held_out import held_out


def main(is_json: JsonFlag = False) -> None:
    """Screen all corpora with the shipped rules."""
    results, ratios = measure(Screener(open_rules()))
    sizes = {"obfuscations": len(OBFUSCATIONS), "phrases": sum(map(len, PHRASES.values()))}
    print_report("screening", sizes, results, ratios, is_json=is_json)


def measure(screener: Screener) -> tuple[Figures, Figures]:
    """The counts of each corpus; the shares of false alarms."""
    hidden = list(obfuscated())
    passed = [text for _, category, text in hidden if not is_rejected(screener, text, category)]
    tuned, apart = list(ordinary()), list(held_out())
    started = time.thread_time()
    alarms, alarms_apart = find_alarms(screener, tuned), find_alarms(screener, apart)
    seconds = time.thread_time() - started
    results = {
        "obfuscated": len(hidden),
        "passed": len(passed),
        "ordinary": len(tuned),
        "alarms": len(alarms),
        "held_out": len(apart),
        "held_out_alarms": alarms_apart,
        "mean_ms": seconds * 1e3 / (len(tuned) + len(apart)),
    }
    ratios = {"alarms": len(alarms) / len(tuned), "held_out_alarms": len(alarms_apart) / len(apart)}
    return results, ratios


def is_rejected(screener: Screener, text: str, category: str) -> bool:
    """Whether the text is rejected for this category."""
    decision = screener.screen([text], {})
    return decision.action is ScreeningAction.REJECT and category in decision.categories


def find_alarms(screener: Screener, prompts: Iterable[str]) -> list[str]:
    """The ordinary prompts that are rejected or flagged."""
    return [text for text in prompts if screener.screen([text], {}).action is not ScreeningAction.ALLOW]


if __name__ == "__main__":
    run(main)
