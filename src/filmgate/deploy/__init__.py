"""Deployment: from a plan to values of the Helm chart, and from a running installation back to its plan."""
