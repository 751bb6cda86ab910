"""Images with labels: named data sets, readers of files and folders, splits, and changes to a batch on its device.

    digits = load_dataset("digits", "train")        # comes with the package; ImageSet of 6,000 images
    own = load_dataset("photos/", "test", img_size=(64, 64))

Readers return an `ImageSet`: one tensor of images, one of labels, the names of the classes.
"""

from torchcaps.data import sets as _sets
from torchcaps.data._registry import dataset_info as dataset_info
from torchcaps.data._registry import list_datasets as list_datasets
from torchcaps.data.augment import affine as affine
from torchcaps.data.augment import flip as flip
from torchcaps.data.augment import shift as shift
from torchcaps.data.dataset import ImageSet as ImageSet
from torchcaps.data.fetch import fetch_dataset as fetch_dataset
from torchcaps.data.load import default_cache_dir as default_cache_dir
from torchcaps.data.load import load_dataset as load_dataset
from torchcaps.data.preprocess import Preprocess as Preprocess
from torchcaps.data.preprocess import images_in as images_in
from torchcaps.data.split import holdout as holdout
from torchcaps.data.verify import FileCheck as FileCheck
from torchcaps.data.verify import verify_dataset as verify_dataset
