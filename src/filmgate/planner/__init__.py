"""Which hardware, how fast, how many, what it costs: pure functions of the catalog and a question."""
