"""How AWS says no: which permission is missing, whether it is the key, whether to try again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

# The permission behind an operation, where the two have different names.
PERMISSIONS: Mapping[str, str] = {
    "HeadObject": "s3:GetObject",
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "ListObjectVersions": "s3:ListBucketVersions",
    "ListMultipartUploads": "s3:ListBucketMultipartUploads",
    "CreateMultipartUpload": "s3:PutObject",
    "UploadPart": "s3:PutObject",
    "CompleteMultipartUpload": "s3:PutObject",
    # Always with a version, so that nothing is left behind a delete marker.
    "DeleteObjects": "s3:DeleteObjectVersion",
    "GetBucketEncryption": "s3:GetEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "s3:GetLifecycleConfiguration",
}
KMS_OPERATIONS = frozenset(
    {"GenerateDataKey", "Decrypt", "DescribeKey", "DisableKey", "ScheduleKeyDeletion", "DeleteAlias"}
)
_NOT_AUTHORIZED = re.compile(r"not authorized to perform:? (?P<action>[a-z0-9-]+:[A-Za-z]+)")
_RESOURCE = re.compile(r"on resource:? \"?(?P<resource>arn:[^\s\"]+)")
_DENIED = frozenset({"AccessDenied", "AccessDeniedException", "403", "AllAccessDisabled"})
_MISSING = frozenset({"NoSuchKey", "NoSuchVersion", "404", "NotFound"})
# As KMS says it, and as S3 does with `KMS.` in front.
_KEY_GONE = frozenset(
    {
        "DisabledException",
        "IncorrectKeyException",
        "InvalidCiphertextException",
        "InvalidKeyUsageException",
        "KMSInvalidStateException",
        "NotFoundException",
    }
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer of AWS, in the parts that matter here."""

    code: str
    operation: str
    message: str = ""

    @property
    def is_denied(self) -> bool:
        return self.code in _DENIED

    @property
    def is_missing(self) -> bool:
        """The object is not there; a missing bucket is another matter."""
        return self.code in _MISSING

    @property
    def is_of_key(self) -> bool:
        """The KMS key is disabled, deleted, unknown, or not the one this was encrypted with."""
        return self.code.removeprefix("KMS.") in _KEY_GONE

    @property
    def permission(self) -> str:
        """The IAM action that would have allowed it: as AWS names it, else by the operation."""
        if found := _NOT_AUTHORIZED.search(self.message):
            return found["action"]
        service = "kms" if self.operation in KMS_OPERATIONS else "s3"
        return PERMISSIONS.get(self.operation, f"{service}:{self.operation}")

    @property
    def words(self) -> str:
        """One line for an operator."""
        if not self.is_denied:
            return f"{self.operation}: {self.code}"
        found = _RESOURCE.search(self.message)
        return f"{self.permission} is missing" + (f" on {found['resource']}" if found else "")


def read_refusal(error: "ClientError") -> Refusal:
    """What a ClientError of botocore says."""
    answer = error.response.get("Error", {})
    return Refusal(
        code=str(answer.get("Code", "")),
        operation=error.operation_name,
        message=str(answer.get("Message", "")),
    )
