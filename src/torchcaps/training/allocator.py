"""Keep freed memory.

The page faults of large short-lived tensors cost more than the arithmetic on them.
"""

import ctypes
import platform

# From glibc's malloc.h: never map large blocks apart, never give the heap's top back.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_MAX = -4


def keep_memory() -> bool:
    """Let glibc's allocator reuse freed memory, for this process and until it ends.

    A training step allocates and frees the same hundreds of megabytes again and again; by default
    glibc maps each anew, and the kernel zeroes every page. Only a program that owns its process
    should call this.

    Returns:
        Whether the allocator is glibc's, and took the settings.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 64 << 20}
    accepted = [mallopt(key, number) == 1 for key, number in settings.items()]
    return all(accepted)
