"""The managed worker: one process polls hundreds of provider jobs on a few threads."""
