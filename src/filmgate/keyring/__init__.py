"""Keys that encrypt: one per tenant, wrapping a data key per object. `base` has the port."""
