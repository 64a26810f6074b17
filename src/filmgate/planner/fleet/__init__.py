"""Fleets: arrivals, queueing, replicas, serving pattern and cost."""
