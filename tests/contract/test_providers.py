"""The Provider port under one suite: a second Filmgate over HTTP, and Bedrock through boto3."""

import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import pytest

from filmgate.errors import ProviderCannot, ProviderRefused
from filmgate.fallback import open_provider
from filmgate.fallback.base import InvocationState, ManagedTask
from filmgate.jobs import InvocationId, ManagedPolicy, Source, SourceKind, VideoSpec, new_job_id
from filmgate.worker.pattern import MODEL, pattern_clip
from tests.bedrock import Bedrock, make_mp4
from tests.images import png
from tests.managed import fallback_to_bedrock
from tests.second import fallback_to, second_filmgate

POLICY = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
SPEC = VideoSpec(
    model=MODEL, prompt="a red ball", width=128, height=128, seconds=2.0, fps=16, seed=7, steps=8
)


@dataclass
class Rig:
    """A provider, and what lies behind it."""

    provider: object
    clip_of: object
    count_jobs: object
    is_empty: object

    def task(self, spec=SPEC, source=None):
        job_id = new_job_id()
        read = (lambda: iter([source])) if source else None
        if source:
            spec = replace(spec, source=Source(SourceKind.IMAGE, part="source"))
        return ManagedTask(job_id, job_id, self.provider.adapt(spec, POLICY), read)

    def wait(self, invocation_id, seconds=15):
        ends = time.monotonic() + seconds
        while (told := self.provider.poll(invocation_id)).state is InvocationState.PENDING:
            assert time.monotonic() < ends
            time.sleep(0.02)
        return told


@contextmanager
def http_rig(folder):
    with second_filmgate(folder) as service:
        provider = open_provider(fallback_to(service))

        def videos():
            with service.client() as client:
                return client.get("/v1/videos").json()["data"]

        yield Rig(
            provider,
            lambda task: pattern_clip(task.rendition.spec),
            lambda: len(videos()),
            lambda: not videos(),
        )


@contextmanager
def bedrock_rig(moto, bucket):
    bedrock = Bedrock(moto)
    settings = fallback_to_bedrock(bedrock, moto, bucket)
    provider = open_provider(settings)
    yield Rig(
        provider,
        lambda _task: make_mp4(),
        lambda: len(bedrock.paid),
        lambda: bedrock.files(bucket) == [],
    )
    for paid in bedrock.paid.values():
        provider.discard(paid.arn)
    bedrock.close()


@pytest.fixture(params=["http", "bedrock"])
def rig(request, tmp_path):
    if request.param == "http":
        context = http_rig(tmp_path)
    else:
        context = bedrock_rig(request.getfixturevalue("moto"), request.getfixturevalue("clip_bucket"))
    with context as rig:
        yield rig


def test_a_started_job_becomes_a_clip_that_can_be_fetched_again(rig):
    task = rig.task()
    invocation_id = rig.provider.start(task)
    assert rig.wait(invocation_id).state is InvocationState.COMPLETED
    clip = b"".join(rig.provider.fetch(invocation_id))
    assert clip == rig.clip_of(task)
    assert b"".join(rig.provider.fetch(invocation_id)) == clip


def test_the_same_token_is_the_same_job_however_often_it_is_started(rig):
    task = rig.task()
    ids = {rig.provider.start(task) for _ in range(3)}
    assert (len(ids), rig.count_jobs()) == (1, 1)
    rig.wait(ids.pop())


def test_another_token_is_another_job(rig):
    ids = {rig.provider.start(rig.task()) for _ in range(2)}
    assert (len(ids), rig.count_jobs()) == (2, 2)
    for invocation_id in ids:
        rig.wait(invocation_id)


def test_nothing_is_left_after_a_discard_and_a_second_one_is_no_error(rig):
    invocation_id = rig.provider.start(rig.task())
    rig.wait(invocation_id)
    rig.provider.discard(invocation_id)
    assert rig.is_empty()
    rig.provider.discard(invocation_id)


def test_a_discard_leaves_other_jobs_alone(rig):
    kept, gone = rig.task(), rig.task()
    kept_id, gone_id = rig.provider.start(kept), rig.provider.start(gone)
    rig.wait(kept_id)
    rig.wait(gone_id)
    rig.provider.discard(gone_id)
    assert b"".join(rig.provider.fetch(kept_id)) == rig.clip_of(kept)


def test_cancelling_twice_is_no_error_and_leads_to_an_end(rig):
    invocation_id = rig.provider.start(rig.task())
    rig.provider.cancel(invocation_id)
    rig.provider.cancel(invocation_id)
    assert rig.wait(invocation_id).state is not InvocationState.PENDING


def test_an_unknown_job_is_an_error_or_a_failure_never_a_wait(rig):
    stranger = InvocationId("arn:aws:bedrock:us-west-2:123456789012:async-invoke/zzzzzzzzzzzz")
    with suppress(ProviderRefused):
        assert rig.provider.poll(stranger).state is InvocationState.FAILED


def test_a_first_frame_travels_along(rig):
    invocation_id = rig.provider.start(rig.task(source=png(64, 64)))
    assert rig.wait(invocation_id).state is InvocationState.COMPLETED


def test_what_the_policy_forbids_is_not_offered(rig):
    with pytest.raises(ProviderCannot, match="no managed provider"):
        rig.provider.adapt(SPEC, ManagedPolicy())


def test_offers_say_what_can_be_asked_for(rig):
    offers = rig.provider.offers()
    assert offers
    assert {offer.provider for offer in offers} == {rig.provider.name}
    assert all(offer.max_prompt_chars > 0 and offer.expected_seconds > 0 for offer in offers)
