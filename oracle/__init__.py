"""The definition of a right RG-LRU: float64 reference, exact mpmath twin, derived error bounds, verdicts.

It knows the mathematics and nothing of kernels, Hypothesis or pytest. Everyone may import it; it imports nobody.
Arrays are NumPy's, or torch's on any device: a case of tensors on a GPU is solved and judged there.
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
