"""The load test of `filmgate bench service`: a mix of clips, a server process, the requests, the figures."""
