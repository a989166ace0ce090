"""What all tests of this layer share."""

from tests.kernel.choice import kernel

__all__ = ["kernel"]
