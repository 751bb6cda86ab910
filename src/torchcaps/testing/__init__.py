"""Property checks, planted answers and random capsules, by which your own routers are tested.

from torchcaps.testing import check_module, check_router, random_capsules
check_router(my_router)
check_module(my_layer, random_capsules(3, 6, 4))
"""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)
