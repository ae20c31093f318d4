"""Functions whose verdict is known beforehand: honest ones the suite must pass, and wrong ones it must catch."""
