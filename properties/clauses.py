"""The whole contract: importing this module imports every clause's test, which fills `CONTRACT`."""

from properties import test_extremes, test_layout, test_structure, test_values
from properties.contract import CONTRACT

__all__ = ["CONTRACT", "test_extremes", "test_layout", "test_structure", "test_values"]
