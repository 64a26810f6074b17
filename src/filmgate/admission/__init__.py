"""Decides whether a request becomes a job. The API calls `Admission.accept` and `Admission.estimate`."""
