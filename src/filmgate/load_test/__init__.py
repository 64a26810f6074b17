"""The load test of a service: a mix of clips, a server process, the requests, the figures, the prediction."""
