"""Subjects: implementations under test, what each promises, and how one is found by name."""

from kernels.subjects.load import BUILT_IN, PER_SHAPE, PRODUCTION, SubjectError, Unavailable, load
from kernels.subjects.subject import Deviation, Subject

__all__ = ["BUILT_IN", "PER_SHAPE", "PRODUCTION", "Deviation", "Subject", "SubjectError", "Unavailable", "load"]
