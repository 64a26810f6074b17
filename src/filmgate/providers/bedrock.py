"""Amazon Bedrock: asynchronous invocations that write the clip to the operator's bucket."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from filmgate.aws import clients as aws
from filmgate.aws.errors import AwsFailure, FailureKind, aws_errors, read_failure
from filmgate.aws.s3_location import S3Location
from filmgate.errors import (
    ProviderCannot,
    ProviderError,
    ProviderRefused,
    ProviderThrottled,
    ProviderUnusable,
    SettingsError,
)
from filmgate.jobs import InvocationId, ManagedPolicy, VideoSpec
from filmgate.providers.adaptation import adapt
from filmgate.providers.base import Invocation, InvocationState, ProviderModel, ProviderTask, Rendition
from filmgate.providers.bedrock_models import (
    PROVIDER,
    LifeCycle,
    entries_of,
    find_model,
    from_answer,
    from_catalog,
    list_models,
)
from filmgate.providers.images import fit_image, png_size
from filmgate.settings import ProviderSettings

_BUCKET_OPTION = "provider.bucket"
_CHUNK_BYTES = 256 << 10
_STATES = {
    "InProgress": InvocationState.PENDING,
    "Completed": InvocationState.COMPLETED,
    "Failed": InvocationState.FAILED,
}
_REFUSED = {"ValidationException", "ConflictException"}
_CLIP = "output.mp4"
_SERVICE = "AWS"  # the calls go to Bedrock and to S3


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients of the two APIs of Bedrock and of S3."""

    runtime: Any
    control: Any
    s3: Any


class BedrockProvider:
    """One video model of Bedrock. Repeated starts with the same clientRequestToken are one invocation."""

    def __init__(self, clients: Clients, settings: ProviderSettings) -> None:
        self._clients = clients
        self._settings = settings
        self._model = find_model(settings.model)
        self._models: tuple[ProviderModel, ...] = ()

    @property
    def name(self) -> str:
        return PROVIDER

    def models(self) -> tuple[ProviderModel, ...]:
        self.life_cycle().check(self._model.id, datetime.now(UTC).date())
        self._models = list_models(self._model, self._settings)
        return self._models

    def life_cycle(self) -> LifeCycle:
        """From GetFoundationModel, or from the catalog if the role may not call it."""
        try:
            with _translated("GetFoundationModel"):
                details = self._clients.control.get_foundation_model(modelIdentifier=self._model.id)
        except ProviderUnusable as exc:
            failure = read_failure(_SERVICE, exc.__cause__)
            if failure is None or failure.kind is not FailureKind.DENIED:
                raise
            return from_catalog(entries_of(self._model.id)[0], self._settings.region)
        life_cycle = details["modelDetails"].get("modelLifecycle", {})
        return from_answer(life_cycle.get("status", "ACTIVE"), life_cycle.get("endOfLifeTime"))

    def adapt(self, spec: VideoSpec, policy: ManagedPolicy) -> Rendition:
        return adapt(spec, self._models or self.models(), policy)

    def start(self, task: ProviderTask) -> InvocationId:
        payload = self._model.to_input(task.rendition.spec, self._read_image(task))
        output = {"s3Uri": self._settings.bucket.rstrip("/")}
        if self._settings.kms_key:
            output["kmsKeyId"] = self._settings.kms_key
        with _translated("StartAsyncInvoke"):
            answer = self._clients.runtime.start_async_invoke(
                clientRequestToken=task.token,
                modelId=self._model.id,
                modelInput=payload,
                outputDataConfig={"s3OutputDataConfig": output},
            )
        return InvocationId(answer["invocationArn"])

    def poll(self, invocation_id: InvocationId) -> Invocation:
        state = _STATES.get(self._get(invocation_id)["status"], InvocationState.PENDING)
        message = "the provider failed the job" if state is InvocationState.FAILED else ""
        return Invocation(invocation_id, state, message=message)

    def fetch(self, invocation_id: InvocationId) -> Iterator[bytes]:
        folder = self._folder(invocation_id)
        with _translated("GetObject"):
            answer = self._clients.s3.get_object(Bucket=folder.bucket, Key=f"{folder.prefix}{_CLIP}")
            # boto3 compares the length with Content-Length when the stream ends.
            with closing(answer["Body"]) as body:
                yield from body.iter_chunks(_CHUNK_BYTES)

    def discard(self, invocation_id: InvocationId) -> None:
        """Delete every version of every file of this invocation, delete markers included."""
        folder = self._folder(invocation_id)
        with _translated("DeleteObjects"):
            pages = self._clients.s3.get_paginator("list_object_versions").paginate(
                Bucket=folder.bucket, Prefix=folder.prefix
            )
            for page in pages:
                found = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
                versions = [{"Key": one["Key"], "VersionId": one["VersionId"]} for one in found]
                if versions:
                    answer = self._clients.s3.delete_objects(
                        Bucket=folder.bucket, Delete={"Objects": versions, "Quiet": True}
                    )
                    if errors := answer.get("Errors"):
                        code = errors[0].get("Code")
                        raise ProviderError(f"S3 did not delete {len(errors)} object versions: {code}")

    def cancel(self, invocation_id: InvocationId) -> None:
        """Does nothing: Bedrock has no cancel. The clip is billed, and deleted when it is finished."""

    def list_jobs(self) -> str:
        """Check that invocations may be listed, for the doctor."""
        with _translated("ListAsyncInvokes"):
            self._clients.runtime.list_async_invokes(maxResults=1)
        return "invocations can be listed"

    def list_bucket(self) -> str:
        """Check that the bucket exists and may be listed, for the doctor."""
        output = S3Location.parse(self._settings.bucket, _BUCKET_OPTION)
        with _translated("ListObjectVersions"):
            self._clients.s3.list_object_versions(Bucket=output.bucket, Prefix=output.prefix, MaxKeys=1)
        return f"s3://{output.bucket} can be listed"

    def _get(self, invocation_id: InvocationId) -> dict[str, Any]:
        with _translated("GetAsyncInvoke"):
            answer: dict[str, Any] = self._clients.runtime.get_async_invoke(invocationArn=invocation_id)
        return answer

    def _folder(self, invocation_id: InvocationId) -> S3Location:
        """The folder of this invocation. Nothing outside it is read or deleted."""
        uri = self._get(invocation_id)["outputDataConfig"]["s3OutputDataConfig"]["s3Uri"]
        output, name = S3Location.parse(uri, _BUCKET_OPTION), invocation_id.rpartition("/")[2]
        if not name:
            raise ProviderError("the id of the invocation names no folder")
        if f"/{output.prefix}".endswith(f"/{name}/"):
            return output
        return S3Location(output.bucket, f"{output.prefix}{name}/")

    def _read_image(self, task: ProviderTask) -> bytes | None:
        if task.read_source is None:
            return None
        image, wanted = b"".join(task.read_source()), task.rendition.model.image_size
        if wanted is None or png_size(image) == wanted:
            return image
        if not task.rendition.may_resize:
            raise ProviderCannot(f"the tenant does not allow the first frame to become {wanted}")
        return fit_image(image, wanted)


def open_bedrock(settings: ProviderSettings) -> BedrockProvider:
    """The provider of these settings. Raises SettingsError, and ProviderUnusable without boto3."""
    if not settings.region:
        raise SettingsError("expected an AWS region, such as us-west-2", option="provider.region")
    S3Location.parse(settings.bucket, _BUCKET_OPTION)
    if not aws.has_boto3():
        raise ProviderUnusable(aws.BOTO3_MISSING)
    # One attempt per call: the worker backs off, and nested retries would amplify an outage.
    options = aws.ClientOptions(
        connect_seconds=settings.timeout_seconds,
        read_seconds=settings.timeout_seconds,
        max_attempts=1,
        max_connections=settings.threads,
    )
    bedrock = aws.Endpoint(settings.region, settings.endpoint, "provider.region")
    bucket = aws.Endpoint(settings.region, settings.bucket_endpoint, "provider.region")
    clients = Clients(
        runtime=aws.open_client("bedrock-runtime", bedrock, options),
        control=aws.open_client("bedrock", bedrock, options),
        s3=aws.open_s3(bucket, options),
    )
    return BedrockProvider(clients, settings)


def _translated(verb: str) -> AbstractContextManager[None]:
    """Translates AWS errors by their code. Their messages are dropped: they may quote the prompt."""

    def to_error(failure: AwsFailure) -> ProviderError:
        message = f"{verb}: {failure.code}"
        if failure.code in _REFUSED:
            return ProviderRefused(message)
        match failure.kind:
            case FailureKind.THROTTLED:
                return ProviderThrottled(message)
            case FailureKind.CREDENTIALS if not failure.operation:
                return ProviderUnusable(f"{verb}: {failure.message}")
            case FailureKind.DENIED | FailureKind.CREDENTIALS | FailureKind.NO_RESOURCE:
                return ProviderUnusable(f"{message}; the role needs the permission, the model and the bucket")
            case FailureKind.UNREACHABLE:
                return ProviderError(f"{verb}: {failure.message}")
        return ProviderError(message)

    return aws_errors(_SERVICE, to_error)
