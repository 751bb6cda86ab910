"""Images with labels: named data sets, readers of files and folders, splits, random changes.

    digits = load_dataset("digits", "train")  # comes with the package: 6,000 images
    own = load_dataset("photos/", "test", img_size=(64, 64))

Readers return a `Dataset`: inputs, targets such as labels and masks, the names of the classes. Names
that not every training needs are imported when they are first used.
"""

# What every training needs.
from torchcaps.data.augment import Transforms as Transforms
from torchcaps.data.load import load_dataset as load_dataset
from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)
