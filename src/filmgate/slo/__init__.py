"""Service level objectives: which clip must be ready when, how many were late, and the alerts about it."""
