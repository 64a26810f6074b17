"""Screening of a generated corpus: no obfuscation passes, false alarms are rare, the time is linear."""

import itertools
import time
from functools import cache

import pytest

from filmgate.admission.screening import Screener, open_rules
from filmgate.jobs import ScreeningAction
from tests.screening_corpus import OBFUSCATIONS, PHRASES, obfuscated, ordinary

SCREENER = Screener(open_rules())
# Characters that expand, marks in two orders, letters as words, and starts of terms, signs and personal data.
HOSTILE = [
    "\ufdfa", "\u3316", "\u33af", "⑽", "ﬃ", "ΐ", "ǖ", "\u0301\u0327", "a\u0327\u0301", "한", "中", "е ",
    "a ", "a.", "x.", "a1 ", "1 ", "n*", "s*s ", "1!|", "aB", "a@", "a@a.", "AB12 ", "DE89 ", "4111 ", "+1 ",
    "\u200ba", "\u202ea", "ignore the ", "you are now ", "nakedchild",
    "s e x u a l i n t e r c o u r s ", "<|", "#", "!", "@", "a!!", "**a", " ", "-",
]  # fmt: skip


def screen(text):
    return SCREENER.screen([text], {})


def test_the_corpus_is_as_large_as_promised():
    assert len(list(itertools.chain(*PHRASES.values()))) >= 20
    assert len({text for _, _, text in obfuscated()}) >= 300
    assert len(set(ordinary())) == 2000


@pytest.mark.parametrize("name", OBFUSCATIONS)
def test_no_obfuscation_of_a_forbidden_phrase_passes(name):
    passed = []
    for _, category, text in (entry for entry in obfuscated() if entry[0] == name):
        decision = screen(text)
        if decision.action is not ScreeningAction.REJECT or category not in decision.categories:
            passed.append(text)
    assert passed == []


def test_false_alarms_are_rare_on_ordinary_prompts():
    prompts = ordinary()
    alarms = [prompt for prompt in prompts if screen(prompt).action is not ScreeningAction.ALLOW]
    assert len(alarms) < 0.005 * len(prompts), alarms


@cache
def cpu_seconds(unit, length):
    text = (unit * length)[:length]

    def once():
        started = time.thread_time()
        screen(text)
        return time.thread_time() - started

    return min(once() for _ in range(3))


@pytest.mark.parametrize("unit", HOSTILE)
def test_the_time_is_linear_in_the_length_of_the_prompt(unit):
    """Far from both limits, because a core may run at half its speed during one of the two."""
    assert cpu_seconds(unit, 16_000) < 64 * cpu_seconds(unit, 1000), "linear: 16 times, quadratic: 256 times"


def test_no_prompt_costs_much_more_than_an_ordinary_one_of_the_same_length():
    usual = cpu_seconds("a fox runs through the forest at dawn, soft light, 35 mm. ", 16_000)
    assert max(cpu_seconds(unit, 16_000) for unit in HOSTILE) < 25 * usual
