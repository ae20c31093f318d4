"""Every patch of our Triton kernels by name, each with the subject that it is put into."""

from properties.mutants.chunked_faults import CHUNKED
from properties.mutants.patch import Patch
from properties.mutants.serial_faults import SERIAL

PATCHES: dict[str, Patch] = SERIAL | CHUNKED
