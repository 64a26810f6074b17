"""Station 3: own GPU or managed provider. A pure choice, a breaker per provider, a spill of what waits."""
