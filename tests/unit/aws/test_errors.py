"""What boto3 raises, as one value without the text of the request."""

import pytest
from boto3.exceptions import S3UploadFailedError
from botocore import exceptions
from botocore.exceptions import ClientError

from filmgate.aws.errors import AwsFailure, FailureKind, aws_errors, read_failure
from filmgate.errors import StoreUnavailable

DENIED = "User: x is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:eu:1:key/k"


def client_error(code, operation="PutObject", message="a red ball in the prompt"):
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", FailureKind.DENIED),
        ("403", FailureKind.DENIED),
        ("NoSuchKey", FailureKind.NOT_FOUND),
        ("NoSuchBucket", FailureKind.NO_RESOURCE),
        ("AWS.SimpleQueueService.NonExistentQueue", FailureKind.NO_RESOURCE),
        ("KMS.DisabledException", FailureKind.KEY),
        ("NotFoundException", FailureKind.KEY),
        ("SlowDown", FailureKind.THROTTLED),
        ("ThrottlingException", FailureKind.THROTTLED),
        ("ExpiredToken", FailureKind.CREDENTIALS),
        ("InternalError", FailureKind.OTHER),
    ],
)
def test_the_error_code_decides_the_kind(code, kind):
    failure = read_failure("S3", client_error(code))
    assert (failure.kind, failure.code, failure.operation) == (kind, code, "PutObject")
    assert "red ball" not in repr(failure) + failure.message


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (
            exceptions.NoCredentialsError(),
            FailureKind.CREDENTIALS,
            "no AWS credentials (NoCredentialsError); set AWS_PROFILE or give this machine a role",
        ),
        (
            exceptions.EndpointConnectionError(endpoint_url="http://x"),
            FailureKind.UNREACHABLE,
            "S3 cannot be reached: EndpointConnectionError",
        ),
        (
            exceptions.ResponseStreamingError(error="cut"),
            FailureKind.UNREACHABLE,
            "S3 cannot be reached: ResponseStreamingError",
        ),
        (
            exceptions.FlexibleChecksumError(error_msg="no match"),
            FailureKind.CHECKSUM,
            "S3 sent bytes that do not match their checksum",
        ),
        (
            exceptions.ParamValidationError(report="bad"),
            FailureKind.OTHER,
            "S3 call failed: ParamValidationError",
        ),
    ],
)
def test_an_error_without_a_response_is_named_by_its_type(error, kind, message):
    failure = read_failure("S3", error)
    assert (failure.kind, failure.message) == (kind, message)


@pytest.mark.parametrize(
    ("service", "operation", "text", "message"),
    [
        ("S3", "HeadObject", "", "S3 denied HeadObject: s3:GetObject is missing"),
        ("KMS", "Decrypt", "", "KMS denied Decrypt: kms:Decrypt is missing"),
        ("SQS", "SendMessageBatch", "", "SQS denied SendMessageBatch: sqs:SendMessage is missing"),
        ("S3", "GetObject", DENIED, "S3 denied GetObject: kms:Decrypt is missing on arn:aws:kms:eu:1:key/k"),
    ],
)
def test_a_denied_call_names_the_iam_action(service, operation, text, message):
    failure = AwsFailure.from_code(service, operation, "AccessDenied", text)
    assert failure.message == message


def test_a_failed_upload_is_read_from_the_request_that_failed():
    def upload():
        try:
            raise client_error("AccessDenied")
        except ClientError as exc:
            raise S3UploadFailedError(f"Failed to upload /home/me/x: {exc}")  # noqa: B904 - as boto3 does

    with pytest.raises(StoreUnavailable, match="^S3 denied PutObject: s3:PutObject is missing$"), errors():
        upload()


def errors(ignored=""):
    return aws_errors("S3", lambda f: None if f.code == ignored else StoreUnavailable(f.message))


def test_the_original_error_is_the_cause():
    original = client_error("SlowDown")
    with pytest.raises(StoreUnavailable) as caught, errors():
        raise original
    assert caught.value.__cause__ is original


def test_a_mapping_to_none_ends_the_block_without_an_error():
    steps = []
    with errors(ignored="InvalidRange"):
        steps.append("in the block")
        raise client_error("InvalidRange")
    steps.append("after it")
    assert steps == ["in the block", "after it"]


def test_other_exceptions_pass_unchanged():
    with pytest.raises(RuntimeError, match="the encoder died"), errors():
        raise RuntimeError("the encoder died")
