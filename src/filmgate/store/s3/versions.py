"""Lists and deletes all versions and delete markers under a prefix, 1,000 per request."""

from itertools import islice
from typing import TYPE_CHECKING, Any

from filmgate.aws.errors import AwsFailure, FailureKind
from filmgate.errors import StoreForbidden, StoreUnavailable
from filmgate.store.s3.errors import SERVICE, s3_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ObjectIdentifierTypeDef

_BATCH = 1000


def list_versions(client: "S3Client", bucket: str, prefix: str) -> "Iterator[dict[str, Any]]":
    """Every version and delete marker under the prefix, ordered by key. A marker has no `Size`."""
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    with s3_errors():
        for page in pages:
            found: list[Any] = [*page.get("Versions", []), *page.get("DeleteMarkers", [])]
            yield from sorted(found, key=lambda item: item["Key"])


def delete_versions(client: "S3Client", bucket: str, prefix: str) -> int:
    """Deletes everything under the prefix. Returns the number of objects that had a current version."""
    found = list(list_versions(client, bucket, prefix))
    versions = iter(found)
    while batch := list(islice(versions, _BATCH)):
        _delete(client, bucket, [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in batch])
    return sum(item["IsLatest"] and "Size" in item for item in found)


def _delete(client: "S3Client", bucket: str, batch: "list[ObjectIdentifierTypeDef]") -> None:
    with s3_errors():
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
    # S3 returns 200 and lists what it could not delete.
    for error in answer.get("Errors", []):
        failure = AwsFailure.from_code(
            SERVICE, "DeleteObjects", error.get("Code", ""), error.get("Message", "")
        )
        message = f"could not delete {len(answer['Errors'])} objects: {failure.message}"
        if failure.kind is FailureKind.DENIED:
            raise StoreForbidden(message, permission=failure.permission)
        raise StoreUnavailable(message)
