from .fixtures import bars as bars
