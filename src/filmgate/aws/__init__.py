"""What the AWS adapters share: clients, how AWS says no, a tenant's key, and the policies."""
