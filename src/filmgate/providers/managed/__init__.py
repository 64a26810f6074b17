"""Station 5, the managed route: hundreds of jobs wait for a provider in one process with a few threads."""
