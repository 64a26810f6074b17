"""Statements of IAM, key, bucket and trust policies, as pure values."""

from collections.abc import Mapping, Sequence

Document = dict[str, object]
Conditions = Mapping[str, Mapping[str, str | Sequence[str]]]


def allow(
    sid: str, actions: Sequence[str], resource: str | Sequence[str], when: Conditions | None = None
) -> Document:
    """One Allow statement of an identity policy."""
    statement: Document = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resource}
    return statement | ({"Condition": when} if when else {})


def principal_statement(
    effect: str,
    sid: str,
    principal: str | Document,
    action: str | Sequence[str],
    resource: str | Sequence[str] = "",
    when: Conditions | None = None,
) -> Document:
    """One statement of a key, bucket or trust policy. A trust policy has no resource."""
    statement: Document = {"Sid": sid, "Effect": effect, "Principal": principal, "Action": action}
    statement |= {"Resource": resource} if resource else {}
    return statement | ({"Condition": when} if when else {})


def deny_plain_http(bucket_arn: str) -> Document:
    resources = [bucket_arn, f"{bucket_arn}/*"]
    when: Conditions = {"Bool": {"aws:SecureTransport": "false"}}
    return principal_statement("Deny", "DenyPlainHttp", "*", "s3:*", resources, when)


def policy_document(statements: Sequence[Document]) -> Document:
    return {"Version": "2012-10-17", "Statement": list(statements)}
