"""Tenants, their API keys, quotas and weights."""
