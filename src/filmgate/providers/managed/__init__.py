"""The managed worker: one process with a few threads follows hundreds of provider jobs."""
