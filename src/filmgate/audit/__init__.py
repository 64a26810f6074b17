"""The audit log: what was made from what, by whom, when. Append-only and hash-chained per tenant."""
