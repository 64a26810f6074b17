"""Statements of IAM, key and bucket policies, as pure values."""

from collections.abc import Mapping, Sequence

Document = dict[str, object]
Conditions = Mapping[str, Mapping[str, str | Sequence[str]]]

VERSION = "2012-10-17"


def allow(
    sid: str, actions: Sequence[str], resource: str | Sequence[str], when: Conditions | None = None
) -> Document:
    """One Allow statement."""
    statement: Document = {"Sid": sid, "Effect": "Allow", "Action": sorted(actions), "Resource": resource}
    return statement | ({"Condition": when} if when else {})


def policy_document(statements: Sequence[Document]) -> Document:
    return {"Version": VERSION, "Statement": list(statements)}
