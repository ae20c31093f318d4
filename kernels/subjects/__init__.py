"""Subjects: implementations under test, what each promises, and how one is found by name."""

from kernels.subjects.load import BUILT_IN, PRODUCTION, SubjectError, Unavailable, load
from kernels.subjects.subject import Deviation, Subject

__all__ = ["BUILT_IN", "PRODUCTION", "Deviation", "Subject", "SubjectError", "Unavailable", "load"]
