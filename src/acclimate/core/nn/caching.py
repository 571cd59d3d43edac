"""How a kernel's loads pass through the cache of the processor that it runs on.

Neighbouring pixels of a convolution see nearly the same patch. Where a kernel copies numbers into shared memory sixteen
bytes at a time, the hardware passes by the processor's own cache, and every patch comes from the cache that all
processors share, as often as it is seen. Copies of eight bytes pass through the nearer one, and find there what was
copied before. So a kernel with such copies takes all taps of some channels one after the other. It also has little
shared memory: of kernels with more than 48 KiB Triton asks for nearly all of a processor's memory as shared, and leaves
little of it to the cache. More instructions are the price, so which is faster is measured.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from .kernels import AVAILABLE, jit

if AVAILABLE:
    import triton.language as tl


@jit
def paired(k, batch, BITS: tl.constexpr):
    """True for each of these numbers 0, 1, ..., a condition whose value the compiler does not know: it knows that those
    of numbers of so many BITS that fill eight bytes are alike, and so copies eight bytes at a time. `batch` is any
    number from 0 on."""
    return k // (64 // BITS) < (batch | 65536)
