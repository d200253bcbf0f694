"""What this machine can do: facts that thin probes gather, judged by pure functions."""
