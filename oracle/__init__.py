"""The definition of a right RG-LRU: float64 reference, exact mpmath twin, derived error bounds, verdicts.

It knows the mathematics and nothing of torch, Hypothesis or pytest. Everyone may import it; it imports nobody.
"""

from oracle.bounds import DEFAULT, FAST, GRADES, LIBM, Bounds, Profile, bound
from oracle.case import GRADIENTS, OUTPUTS, Case, Result
from oracle.reference import Reference, solve
from oracle.verdict import OutputVerdict, Verdict, judge

__all__ = [
    "DEFAULT",
    "FAST",
    "GRADES",
    "GRADIENTS",
    "LIBM",
    "OUTPUTS",
    "Bounds",
    "Case",
    "OutputVerdict",
    "Profile",
    "Reference",
    "Result",
    "Verdict",
    "bound",
    "judge",
    "solve",
]
