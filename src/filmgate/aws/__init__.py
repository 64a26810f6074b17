"""Access to AWS: clients, errors, tenant keys, IAM policies. Only this package imports boto3."""
