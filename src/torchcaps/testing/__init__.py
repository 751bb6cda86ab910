"""Property checks, planted answers and random capsules, by which your own routers are tested.

from torchcaps.testing import check_module, check_router, random_capsules
check_router(my_router)
check_module(my_layer, random_capsules(3, 6, 4))
"""

from torchcaps.registry import load_name, stub_names

_MODULES = stub_names(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    return load_name(__name__, _MODULES, name)
