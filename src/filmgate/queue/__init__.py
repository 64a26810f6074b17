"""Station 4: who works on what. `base` has the ports; SQLite and PostgreSQL share one table design."""
