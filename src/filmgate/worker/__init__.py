"""Room 4: lease, render, upload, complete. `base` has the Runner protocol."""
