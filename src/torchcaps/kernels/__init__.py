"""Fast paths behind the signatures of `torchcaps.functional`; only `torchcaps.ops` imports them.

A fast path is one file: it registers itself when it is imported. Modules with a leading underscore
need numba or Triton, and are imported at the first call that needs them.
"""

from torchcaps.registry import import_submodules

import_submodules(__name__)
