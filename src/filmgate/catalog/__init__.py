"""Dated, sourced facts as data files: GPUs, instances, prices, managed APIs, models and runs."""
