"""The contract of the Provider port: a second Filmgate over HTTP, and Bedrock through boto3."""

from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from filmgate.errors import ProviderCannot, ProviderRefused
from filmgate.jobs import InvocationId, ManagedPolicy, Source, SourceKind, VideoSpec, new_job_id
from filmgate.providers import open_provider
from filmgate.providers.base import InvocationState, ProviderTask
from tests.fake_bedrock import FakeBedrock, make_mp4
from tests.images import png
from tests.managed_site import bedrock_settings
from tests.pattern_runner import MODEL, pattern_clip
from tests.second_filmgate import endpoint_settings, second_filmgate
from tests.waiting import wait_until

POLICY = ManagedPolicy(is_allowed=True, may_resize=True, may_change_length=True)
SPEC = VideoSpec(
    model=MODEL, prompt="a red ball", width=128, height=128, seconds=2.0, fps=16, seed=7, steps=8
)


@dataclass
class Rig:
    """A provider, the jobs it has, and whether any data of them is left."""

    provider: object
    clip_of: object
    job_ids: object
    is_empty: object
    started: list = field(default_factory=list)

    def task(self, spec=SPEC, source=None):
        job_id = new_job_id()
        read = (lambda: iter([source])) if source else None
        if source:
            spec = replace(spec, source=Source(SourceKind.IMAGE, part="source"))
        return ProviderTask(job_id, self.provider.adapt(spec, POLICY), read)

    def start(self, task):
        self.started.append(self.provider.start(task))
        return self.started[-1]

    def wait(self, invocation_id):
        def poll():
            invocation = self.provider.poll(invocation_id)
            return None if invocation.state is InvocationState.PENDING else invocation

        return wait_until(poll)

    def clear(self):
        for invocation_id in self.started:
            self.wait(invocation_id)
            self.provider.discard(invocation_id)
        self.started.clear()


@pytest.fixture(scope="module")
def http_rig(tmp_path_factory):
    with second_filmgate(tmp_path_factory.mktemp("second")) as service:

        def job_ids():
            with service.client() as client:
                return {video["id"] for video in client.get("/v1/videos").json()["data"]}

        provider = open_provider(endpoint_settings(service))
        yield Rig(provider, lambda task: pattern_clip(task.rendition.spec), job_ids, lambda: not job_ids())


@pytest.fixture(scope="module")
def bedrock_rig(moto, clip_bucket):
    bedrock = FakeBedrock(moto)
    yield Rig(
        open_provider(bedrock_settings(bedrock, moto, clip_bucket)),
        lambda _task: make_mp4(),
        lambda: {paid.arn for paid in bedrock.paid.values()},
        lambda: bedrock.files(clip_bucket) == [],
    )
    bedrock.close()


@pytest.fixture(params=["http", "bedrock"])
def rig(request):
    rig = request.getfixturevalue(f"{request.param}_rig")
    yield rig
    rig.clear()


def test_a_started_job_becomes_a_clip_that_can_be_fetched_again(rig):
    task = rig.task()
    invocation_id = rig.start(task)
    assert rig.wait(invocation_id).state is InvocationState.COMPLETED
    clip = b"".join(rig.provider.fetch(invocation_id))
    assert clip == rig.clip_of(task)
    assert b"".join(rig.provider.fetch(invocation_id)) == clip


@pytest.mark.parametrize("source", [None, png(64, 64)], ids=["text", "first frame"])
def test_repeated_starts_with_the_same_token_are_one_job(rig, source):
    task = rig.task(source=source)
    before = rig.job_ids()
    ids = {rig.start(task) for _ in range(3)}
    assert (len(ids), rig.job_ids() - before) == (1, ids)


def test_another_token_is_another_job(rig):
    before = rig.job_ids()
    ids = {rig.start(rig.task()) for _ in range(2)}
    assert (len(ids), rig.job_ids() - before) == (2, ids)


def test_a_discard_deletes_everything_and_can_be_repeated(rig):
    invocation_id = rig.start(rig.task())
    rig.wait(invocation_id)
    rig.provider.discard(invocation_id)
    assert rig.is_empty()
    rig.provider.discard(invocation_id)


def test_a_discard_does_not_touch_other_jobs(rig):
    kept, deleted = rig.task(), rig.task()
    kept_id, deleted_id = rig.start(kept), rig.start(deleted)
    rig.wait(kept_id)
    rig.wait(deleted_id)
    rig.provider.discard(deleted_id)
    assert b"".join(rig.provider.fetch(kept_id)) == rig.clip_of(kept)


def test_a_cancelled_job_ends_and_can_be_cancelled_again(rig):
    invocation_id = rig.start(rig.task())
    rig.provider.cancel(invocation_id)
    rig.provider.cancel(invocation_id)
    assert rig.wait(invocation_id).state is not InvocationState.PENDING


def test_an_unknown_job_is_rejected_or_failed_but_never_pending(rig):
    unknown = InvocationId("arn:aws:bedrock:us-west-2:123456789012:async-invoke/zzzzzzzzzzzz")
    with suppress(ProviderRefused):
        assert rig.provider.poll(unknown).state is InvocationState.FAILED


def test_a_job_with_a_first_frame_completes(rig):
    invocation_id = rig.start(rig.task(source=png(64, 64)))
    assert rig.wait(invocation_id).state is InvocationState.COMPLETED


def test_a_forbidden_rendition_is_not_offered(rig):
    with pytest.raises(ProviderCannot, match="no managed provider"):
        rig.provider.adapt(SPEC, ManagedPolicy())


def test_models_state_their_provider_and_limits(rig):
    models = rig.provider.models()
    assert models
    assert {model.provider for model in models} == {rig.provider.name}
    assert all(model.max_prompt_chars > 0 and model.expected_seconds > 0 for model in models)
