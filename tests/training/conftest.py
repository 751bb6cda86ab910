from .fixtures import bars as bars, finished as finished
