"""Keep freed memory.

The page faults of large short-lived tensors cost more than the arithmetic on them.
"""

import ctypes
import platform

# From glibc's malloc.h: never map large blocks apart, never give the heap's top back.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_M_MMAP_MAX = -4


def keep_memory() -> bool:
    """Let glibc's allocator reuse freed memory, for this process and until it ends.

    A training step allocates and frees the same hundreds of megabytes again and again; by default
    glibc maps each anew, and the kernel zeroes every page. Only a program that owns its process
    should call this.

    Returns:
        Whether the allocator is glibc's, and took the settings.
    """
    return _set((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 << 20))


def give_memory_back() -> bool:
    """Undo `keep_memory`: what glibc comes to by itself once large blocks have come and gone."""
    mapped = ((_M_MMAP_MAX, 65536), (_M_MMAP_THRESHOLD, 32 << 20))
    return _set(*mapped, (_M_TRIM_THRESHOLD, 64 << 20), (_M_TOP_PAD, 1 << 17))


def _set(*settings: tuple[int, int]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    accepted = [mallopt(key, number) == 1 for key, number in settings]
    return all(accepted)
