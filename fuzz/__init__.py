"""Kept cases: what failed once, small, durable and replayable."""
