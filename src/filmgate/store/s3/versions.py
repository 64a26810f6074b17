"""Complete removal from a bucket: every version and every delete marker, a thousand at a time."""

from itertools import islice
from typing import TYPE_CHECKING

from filmgate.aws.errors import Refusal
from filmgate.errors import StoreForbidden, StoreUnavailable
from filmgate.store.s3.errors import translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import ListObjectVersionsOutputTypeDef, ObjectIdentifierTypeDef

_BATCH = 1000


def remove_versions(client: "S3Client", bucket: str, prefix: str) -> int:
    """Remove whatever lies under the prefix, seen or hidden; how many objects could be seen."""
    pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket, Prefix=prefix)
    with translated():
        found = list(pages)
    doomed = (version for page in found for version in _versions(page))
    while batch := list(islice(doomed, _BATCH)):
        _remove(client, bucket, batch)
    return sum(version["IsLatest"] for page in found for version in page.get("Versions", []))


def _versions(page: "ListObjectVersionsOutputTypeDef") -> "Iterator[ObjectIdentifierTypeDef]":
    for version in page.get("Versions", []):
        yield {"Key": version["Key"], "VersionId": version["VersionId"]}
    for marker in page.get("DeleteMarkers", []):
        yield {"Key": marker["Key"], "VersionId": marker["VersionId"]}


def _remove(client: "S3Client", bucket: str, batch: "list[ObjectIdentifierTypeDef]") -> None:
    with translated():
        answer = client.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": True})
    # S3 answers 200 and lists what it did not remove.
    for error in answer.get("Errors", []):
        refusal = Refusal(error.get("Code", ""), "DeleteObjects", error.get("Message", ""))
        words = f"S3 kept {len(answer['Errors'])} objects: {refusal.words}"
        if refusal.is_denied:
            raise StoreForbidden(words, permission=refusal.permission)
        raise StoreUnavailable(words)
