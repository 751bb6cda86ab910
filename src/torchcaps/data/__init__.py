"""Images with labels: named data sets, readers of files and folders, splits, and changes to a batch on its device.

    digits = load_dataset("digits", "train")        # comes with the package; ImageSet of 6,000 images
    own = load_dataset("photos/", "test", img_size=(64, 64))

Readers return an `ImageSet`: one tensor of images, one of labels, the names of the classes.
"""

from torchcaps.data import sets as _sets  # registers the named sets
from torchcaps.data._registry import DatasetInfo as DatasetInfo
from torchcaps.data._registry import dataset_info as dataset_info
from torchcaps.data._registry import list_datasets as list_datasets
from torchcaps.data._registry import register_dataset as register_dataset
from torchcaps.data._registry import register_format as register_format
from torchcaps.data._registry import register_layout as register_layout
from torchcaps.data._registry import register_made as register_made
from torchcaps.data.arrays import read_arrays as read_arrays
from torchcaps.data.augment import affine as affine
from torchcaps.data.augment import centre_crop as centre_crop
from torchcaps.data.augment import erase as erase
from torchcaps.data.augment import flip as flip
from torchcaps.data.augment import random_crop as random_crop
from torchcaps.data.augment import relight as relight
from torchcaps.data.augment import shift as shift
from torchcaps.data.dataset import Drawn as Drawn
from torchcaps.data.dataset import ImageSet as ImageSet
from torchcaps.data.fetch import fetch_dataset as fetch_dataset
from torchcaps.data.folder import read_folder as read_folder
from torchcaps.data.idx import read_idx as read_idx
from torchcaps.data.images import decode_image as decode_image
from torchcaps.data.load import default_cache_dir as default_cache_dir
from torchcaps.data.load import load_dataset as load_dataset
from torchcaps.data.masks import MaskedSet as MaskedSet
from torchcaps.data.masks import read_masks as read_masks
from torchcaps.data.mat import read_mat as read_mat
from torchcaps.data.pairs import PairMaker as PairMaker
from torchcaps.data.pairs import PairSet as PairSet
from torchcaps.data.pairs import make_pairs as make_pairs
from torchcaps.data.pairs import multi_hot as multi_hot
from torchcaps.data.points import PointSet as PointSet
from torchcaps.data.points import read_points as read_points
from torchcaps.data.preprocess import Preprocess as Preprocess
from torchcaps.data.preprocess import images_in as images_in
from torchcaps.data.preprocess import preprocess_of as preprocess_of
from torchcaps.data.sets.affnist import read_affnist as read_affnist
from torchcaps.data.sets.cifar10 import read_cifar as read_cifar
from torchcaps.data.sets.gtsrb import read_gtsrb as read_gtsrb
from torchcaps.data.sets.placed import PlacedSet as PlacedSet
from torchcaps.data.sets.placed import affine_copies as affine_copies
from torchcaps.data.sets.placed import placed as placed
from torchcaps.data.sets.planes import make_planes as make_planes
from torchcaps.data.sets.shapes import render_shapes as render_shapes
from torchcaps.data.sets.smallnorb import Views as Views
from torchcaps.data.sets.smallnorb import read_matrix as read_matrix
from torchcaps.data.sets.smallnorb import read_norb as read_norb
from torchcaps.data.sets.smallnorb import split_views as split_views
from torchcaps.data.sets.svhn import read_svhn as read_svhn
from torchcaps.data.sets.synthnorb import render_synthnorb as render_synthnorb
from torchcaps.data.sources import Archive as Archive
from torchcaps.data.sources import Mirror as Mirror
from torchcaps.data.sources import NpmPackage as NpmPackage
from torchcaps.data.sources import Rendering as Rendering
from torchcaps.data.split import few_labels as few_labels
from torchcaps.data.split import holdout as holdout
from torchcaps.data.table import read_table as read_table
from torchcaps.data.tar import read_tar as read_tar
from torchcaps.data.tree import LabelTree as LabelTree
from torchcaps.data.tree import label_tree as label_tree
from torchcaps.data.verify import FileCheck as FileCheck
from torchcaps.data.verify import verify_dataset as verify_dataset
