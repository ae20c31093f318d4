"""How many examples a test gets. Imports nothing: a device must be chosen before Triton is imported."""

PROFILES = {"quick": 10, "default": 50, "thorough": 1000}
