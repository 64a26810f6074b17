"""Which hardware, how many and at what cost: pure functions of the catalog and a question."""
