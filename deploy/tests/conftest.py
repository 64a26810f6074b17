"""Fixtures that the checks of the deployment share with the other tests."""

from tests.aws import aws_url, cloud, tenant_keys

__all__ = ["aws_url", "cloud", "tenant_keys"]
