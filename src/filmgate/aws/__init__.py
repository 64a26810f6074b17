"""Access to AWS: clients, errors, tenant keys, IAM policies. Only this room imports boto3."""
