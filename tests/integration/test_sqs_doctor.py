"""`filmgate doctor` has a verdict and a remedy for every mistake in the SQS queue."""

import json
from contextlib import closing

import pytest

from filmgate.scheduling.wakers.sqs_doctor import examine_kind, examine_sqs
from filmgate.scheduling.wakers.sqs_queues import SqsQueue
from filmgate.settings import QueueSettings
from filmgate.telemetry.findings import Verdict
from tests.forks import run_process
from tests.http_server import Handler, HttpServer
from tests.sqs_pair import SqsPair


def findings(site, **given):
    settings = QueueSettings(**site.settings | given)
    return {finding.subject: finding for finding in examine_sqs(settings, "flipbook")}


def test_a_correct_queue_is_ok_in_every_finding(sqs):
    found = findings(sqs)
    assert list(found) == ["SQS", "SQS kind", "SQS visibility", "SQS dead letters"]
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}


def test_there_are_no_findings_without_sqs():
    assert list(examine_sqs(QueueSettings(), "flipbook")) == []


@pytest.mark.parametrize(
    ("made", "given", "subject", "verdict", "remedy"),
    [
        ({"visibility_seconds": 10}, {}, "SQS visibility", Verdict.WARN, "VisibilityTimeout to 30"),
        ({"max_receives": 3}, {}, "SQS dead letters", Verdict.WARN, "maxReceiveCount to 5"),
        ({}, {"waker": "sqs://gone.fifo"}, "SQS", Verdict.FAIL, "create gone.fifo"),
        ({}, {"endpoint": "http://127.0.0.1:9"}, "SQS", Verdict.FAIL, "queue.endpoint"),
    ],
)
def test_each_mistake_has_a_finding_and_a_remedy(aws_url, made, given, subject, verdict, remedy):
    found = findings(SqsPair(aws_url, **made), **given)[subject]
    assert found.verdict is verdict
    assert remedy in found.remedy


def test_a_standard_queue_fails(aws_url):
    site = SqsPair(aws_url, is_fifo=False)
    found = examine_kind(SqsQueue(site.client, site.url).attributes("All"))
    assert (found.verdict, "FifoQueue=true" in found.remedy) == (Verdict.FAIL, True)


def test_a_queue_without_dead_letters_fails(sqs):
    sqs.client.set_queue_attributes(QueueUrl=sqs.url, Attributes={"RedrivePolicy": ""})
    found = findings(sqs)["SQS dead letters"]
    assert (found.verdict, "RedrivePolicy" in found.remedy) == (Verdict.FAIL, True)


class _Denies(Handler):
    """SQS for a role without permission."""

    def do_POST(self):
        self.read_body()
        body = json.dumps({"__type": "com.amazonaws.sqs#AccessDenied", "message": "not authorized"})
        self.answer(403, body, {"Content-Type": "application/x-amz-json-1.0"})


def test_a_missing_permission_is_named(sqs):
    with closing(HttpServer(_Denies)) as server:
        found = findings(sqs, endpoint=server.url)["SQS"]
    assert "sqs:GetQueueUrl is missing" in found.message
    assert (found.verdict, "allow that action" in found.remedy) == (Verdict.FAIL, True)


def test_the_command_prints_the_findings(sqs):
    environ = {f"FILMGATE_QUEUE__{name.upper()}": value for name, value in sqs.settings.items()}
    report = json.loads(run_process("filmgate", "doctor", "--json", environ=environ).stdout)
    verdicts = {finding["subject"]: finding["verdict"] for finding in report["findings"]}
    assert (verdicts["SQS"], verdicts["SQS dead letters"]) == ("ok", "ok")
