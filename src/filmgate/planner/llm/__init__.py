"""Language-model plans: step time, memory, arrivals, cost and the answer."""
