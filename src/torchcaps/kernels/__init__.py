"""Fast paths behind the signatures of `torchcaps.functional`. Only `torchcaps.ops` imports this room.

Each registers itself when its module is imported, which this one does: a new fast path is one file to add. Modules with
a leading underscore need numba or Triton, and are imported at the first call that needs them.
"""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    if ".simd" not in _module.name and "._" not in _module.name:
        import_module(_module.name)
