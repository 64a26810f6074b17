"""Video plans: a clip's work, memory and time, the machines that can render it, and the answer."""
