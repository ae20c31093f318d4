"""Our chunk-parallel Triton kernels in three launches, in which no program waits for another."""

from kernels.subjects.chunked import CHUNK, subject

SUBJECT = subject("three-pass", CHUNK, "three-pass")
