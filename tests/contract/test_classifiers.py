"""The contract of the Classifier port, for every adapter, and the time box around a remote one."""

import json

import hypothesis
import pytest
from hypothesis import strategies as st

from filmgate.admission.screening import Screener, open_rules, open_screener
from filmgate.admission.screening.base import Label
from filmgate.admission.screening.classifier import RulesClassifier
from filmgate.admission.screening.comprehend import MAX_SEGMENT_BYTES, ComprehendClassifier, split
from filmgate.admission.screening.doctor import examine_classifier
from filmgate.admission.screening.http import HttpClassifier
from filmgate.errors import ClassifierUnavailable, SettingsError
from filmgate.jobs import ScreeningAction
from filmgate.settings import ClassifierSettings
from filmgate.telemetry.findings import Verdict
from tests.aws import CREDENTIALS, REGION
from tests.moderation_server import FORBIDDEN, moderation_server

RULES = open_rules()
ONE_RULE = f"""
[categories]
sexual = {{ action = "reject" }}
[[rules]]
id = "rules.sexual"
category = "sexual"
all_of = [["{FORBIDDEN}"]]
"""


@pytest.fixture
def site():
    with moderation_server() as site:
        yield site


def http_settings(site, **given):
    return ClassifierSettings(
        kind="http", url=f"{site.url}/v1/moderations", **{"timeout_seconds": 30} | given
    )


def open_remote(kind, site):
    if kind == "http":
        return HttpClassifier(http_settings(site), frozenset(RULES.categories))
    settings = ClassifierSettings(kind=kind, region=REGION, endpoint=site.url, timeout_seconds=30)
    return ComprehendClassifier.open(settings)


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(params=["rules", "http", "comprehend"])
def classifier(request, site, tmp_path):
    if request.param == "rules":
        file = tmp_path / "one.toml"
        file.write_text(ONE_RULE)
        return RulesClassifier(open_rules(str(file)))
    return open_remote(request.param, site)


def test_a_text_is_labelled_with_its_category_and_the_name_of_the_classifier(classifier):
    label = Label(f"{classifier.name}.sexual", "sexual")
    assert classifier.classify([f"a {FORBIDDEN} scene"]) == {label}
    assert classifier.classify(["a red ball", f"a {FORBIDDEN} scene"]) == {label}
    assert classifier.classify(["a red ball"]) == frozenset()
    assert label.category in classifier.categories


@pytest.mark.parametrize("kind", ["http", "comprehend"])
@pytest.mark.parametrize("reply", [(500, "{}"), (403, '{"__type": "AccessDeniedException"}'), (429, "{}")])
def test_an_error_of_the_service_is_one_error_without_its_text(site, kind, reply):
    remote, site.reply = open_remote(kind, site), reply
    with pytest.raises(ClassifierUnavailable) as caught:
        remote.classify([f"a {FORBIDDEN} scene"])
    assert FORBIDDEN not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["", "no json", "[]", "{}", '{"results": []}', '{"results": [{}]}', '{"results": [{"categories": 1}]}'],
)
def test_an_answer_without_results_is_no_answer(site, text):
    remote, site.reply = open_remote("http", site), (200, text)
    with pytest.raises(ClassifierUnavailable):
        remote.classify(["a red ball"])


def test_categories_of_openai_become_ours_and_flags_count_where_there_is_no_score(site):
    result = {
        "categories": {"sexual/minors": True, "self-harm/intent": False, "other": True},
        "category_scores": {"violence/graphic": 0.5, "hate": 0.49},
    }
    remote, site.reply = open_remote("http", site), (200, json.dumps({"results": [result]}))
    assert {label.category for label in remote.classify(["x"])} == {"minors", "violence"}


def test_the_key_and_the_model_are_sent(site, tmp_path):
    (tmp_path / "key").write_text("secret\n")
    settings = http_settings(site, key_file=str(tmp_path / "key"), model="guard")
    HttpClassifier(settings, frozenset()).classify(["a red ball"])
    headers, body = site.requests[0]
    assert (headers["Authorization"], body) == ("Bearer secret", {"input": ["a red ball"], "model": "guard"})


def test_comprehend_gets_ten_segments_at_a_time(site):
    texts = ["word " * 1999 + FORBIDDEN, "ü" * 4000]
    assert open_remote("comprehend", site).classify(texts)
    assert [len(body["TextSegments"]) for _, body in site.requests] == [10, 9]


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.text(st.characters(exclude_categories=["Cs"]), max_size=3000))
def test_segments_are_short_enough_and_lose_no_word(text):
    segments = list(split(text))
    assert all(len(segment.encode()) <= MAX_SEGMENT_BYTES for segment in segments)
    assert "".join(segments).split() == text.split()


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"kind": "http", "url": "ftp://x"}, "classifier.url"),
        ({"kind": "http", "url": "http://x", "key_file": "/nonexistent"}, "classifier.key_file"),
        ({"fail_closed": "minors,unknown"}, "classifier.fail_closed"),
    ],
)
def test_a_wrong_setting_is_named(given, option):
    with pytest.raises(SettingsError) as caught:
        open_screener("", ClassifierSettings(**given))
    assert caught.value.option == option


def time_boxed(site, seconds, *fail_closed):
    return Screener(RULES, open_remote("http", site), seconds, frozenset(fail_closed))


def test_labels_of_rules_and_classifier_make_one_decision(site):
    decision = time_boxed(site, 30).screen([f"a {FORBIDDEN} poster that says jo@example.com"], {})
    assert decision.action is ScreeningAction.REJECT
    assert decision.rules == ("http.sexual", "personal.email")
    assert decision.categories == ("sexual",)
    flagged = time_boxed(site, 30).screen([FORBIDDEN], {"sexual": ScreeningAction.FLAG})
    assert (flagged.action, flagged.categories) == (ScreeningAction.FLAG, ("sexual",))


def test_a_prompt_that_the_rules_reject_is_not_sent_to_the_classifier(site):
    assert time_boxed(site, 30).screen(["a naked child"], {}).action is ScreeningAction.REJECT
    assert site.requests == []


@pytest.mark.parametrize(("is_silent", "rule"), [(True, "http.timeout"), (False, "http.failed")])
def test_without_an_answer_a_prompt_passes_or_fails_by_category(site, is_silent, rule):
    site.reply = (500, "")
    limit_seconds = 30
    if is_silent:
        site.is_silent.set()
        limit_seconds = 0.05
    decision = time_boxed(site, limit_seconds).screen(["a red ball"], {})
    assert (decision.action, decision.rules) == (ScreeningAction.FLAG, (rule,))
    assert decision.categories == ("unscreened",)
    closed = time_boxed(site, limit_seconds, "sexual")
    with pytest.raises(ClassifierUnavailable):
        closed.screen(["a red ball"], {})
    # A tenant that allows the category does not need the answer.
    assert closed.screen(["a red ball"], {"sexual": ScreeningAction.ALLOW}).rules == (rule,)


@pytest.mark.parametrize(("reply", "verdict"), [(None, Verdict.OK), ((500, ""), Verdict.FAIL)])
def test_the_doctor_asks_the_classifier_about_a_harmless_text(site, reply, verdict):
    site.reply = reply
    (finding,) = examine_classifier("", http_settings(site))
    assert (finding.subject, finding.verdict) == ("classifier", verdict)
    assert list(examine_classifier("", ClassifierSettings())) == []
