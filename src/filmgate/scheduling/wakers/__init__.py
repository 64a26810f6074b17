"""How workers learn that there is work: by asking the database, or by a message on SQS."""
