"""Readers of GPU metrics for `filmgate plan rightsize`: CSV files, Prometheus and CloudWatch."""
