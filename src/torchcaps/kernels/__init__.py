"""Fast paths behind the signatures of `torchcaps.functional`. Only `torchcaps.ops` imports this room.

Each registers itself when its module is imported, which this one does: a new fast path is one file to add. Modules with
a leading underscore need numba or Triton, and are imported at the first call that needs them.
"""

from importlib import import_module
from pkgutil import walk_packages


def _register() -> None:
    for module in walk_packages(__path__, f"{__name__}."):
        parts = module.name.split(".")
        if "simd" not in parts and not parts[-1].startswith("_"):
            import_module(module.name)


_register()
