"""Who may call: tenants, their API keys, quotas and weights. `base` has the port."""
