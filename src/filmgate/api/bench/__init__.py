"""How many creates a second, in how much memory, with how many watchers: ours beside a bare endpoint."""
