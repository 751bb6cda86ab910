from .fixtures import bars as bars, finished as finished, images as images
