"""All public names of `torchcaps.data`; the import of this module registers every set and format."""

from torchcaps.data._registry import (
    DatasetInfo,
    ReadOptions,
    ReadRequest,
    dataset_info,
    list_datasets,
    register_dataset,
    register_derived,
    register_directory_format,
    register_format,
)
from torchcaps.data.archives import read_tar
from torchcaps.data.arrays import read_arrays
from torchcaps.data.augment import Transforms, refuse_augmentations, register_augmentation
from torchcaps.data.augment.intensity import color_jitter, random_morphology
from torchcaps.data.augment.spatial import affine, random_erasing, random_horizontal_flip, shift
from torchcaps.data.classes import LabelTree, label_tree, match_classes, multi_hot
from torchcaps.data.dataset import Dataset, Maker
from torchcaps.data.files import DiskDataset
from torchcaps.data.folder import read_folder
from torchcaps.data.idx import read_idx
from torchcaps.data.images import decode_image
from torchcaps.data.load import default_cache_dir, load_dataset
from torchcaps.data.mask_files import read_masks
from torchcaps.data.masks import masked_set
from torchcaps.data.mat import read_mat
from torchcaps.data.pixels import center_crop, random_crop
from torchcaps.data.points import point_set, read_points
from torchcaps.data.preprocess import Preprocess
from torchcaps.data.sets.affnist import read_affnist
from torchcaps.data.sets.cifar10 import read_cifar
from torchcaps.data.sets.gtsrb import read_gtsrb
from torchcaps.data.sets.multi import PairMaker, make_pairs
from torchcaps.data.sets.placed import affine_copies, placed
from torchcaps.data.sets.planes import make_planes
from torchcaps.data.sets.shapes import render_shapes
from torchcaps.data.sets.smallnorb import Views, read_matrix, read_norb, split_views
from torchcaps.data.sets.svhn import read_svhn
from torchcaps.data.sets.synthnorb import render_synthnorb
from torchcaps.data.sources import (
    Archive,
    FileCheck,
    Mirror,
    NpmPackage,
    Rendering,
    fetch_dataset,
    verify_dataset,
)
from torchcaps.data.splits import few_labels, stratified_folds, stratified_split
from torchcaps.data.table import read_table
from torchcaps.data.types import Batch
from torchcaps.registry import import_submodules

__all__ = [
    "Archive",
    "Batch",
    "Dataset",
    "DatasetInfo",
    "DiskDataset",
    "FileCheck",
    "LabelTree",
    "Maker",
    "Mirror",
    "NpmPackage",
    "PairMaker",
    "Preprocess",
    "ReadOptions",
    "ReadRequest",
    "Rendering",
    "Transforms",
    "Views",
    "affine",
    "affine_copies",
    "center_crop",
    "color_jitter",
    "dataset_info",
    "decode_image",
    "default_cache_dir",
    "fetch_dataset",
    "few_labels",
    "label_tree",
    "list_datasets",
    "load_dataset",
    "make_pairs",
    "make_planes",
    "masked_set",
    "match_classes",
    "multi_hot",
    "placed",
    "point_set",
    "random_crop",
    "random_erasing",
    "random_horizontal_flip",
    "random_morphology",
    "read_affnist",
    "read_arrays",
    "read_cifar",
    "read_folder",
    "read_gtsrb",
    "read_idx",
    "read_masks",
    "read_mat",
    "read_matrix",
    "read_norb",
    "read_points",
    "read_svhn",
    "read_table",
    "read_tar",
    "refuse_augmentations",
    "register_augmentation",
    "register_dataset",
    "register_derived",
    "register_directory_format",
    "register_format",
    "render_shapes",
    "render_synthnorb",
    "shift",
    "split_views",
    "stratified_folds",
    "stratified_split",
    "verify_dataset",
]

import_submodules("torchcaps.data.sets")
