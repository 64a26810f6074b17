"""Package 4 on the request path: leases, renders, uploads, completes. `base` has the Runner protocol."""
