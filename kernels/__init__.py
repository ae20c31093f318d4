"""The production RG-LRU kernels in Triton, and the subjects: whatever the suite can put under test."""

from kernels.operator import rglru

__all__ = ["rglru"]
