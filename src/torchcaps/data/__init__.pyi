from torchcaps.data._registry import (
    DatasetInfo as DatasetInfo,
    ReadOptions as ReadOptions,
    ReadRequest as ReadRequest,
    dataset_info as dataset_info,
    list_datasets as list_datasets,
    register_dataset as register_dataset,
    register_derived as register_derived,
    register_directory_format as register_directory_format,
    register_format as register_format,
)
from torchcaps.data.arrays import read_arrays as read_arrays
from torchcaps.data.augment import (
    Transforms as Transforms,
    refuse_augmentations as refuse_augmentations,
    register_augmentation as register_augmentation,
)
from torchcaps.data.classes import (
    LabelTree as LabelTree,
    few_labels as few_labels,
    label_tree as label_tree,
    multi_hot as multi_hot,
    stratified_folds as stratified_folds,
    stratified_split as stratified_split,
)
from torchcaps.data.dataset import (
    Batch as Batch,
    Dataset as Dataset,
    Maker as Maker,
    match_classes as match_classes,
)
from torchcaps.data.files import DiskDataset as DiskDataset
from torchcaps.data.folder import read_folder as read_folder
from torchcaps.data.idx import read_idx as read_idx
from torchcaps.data.images import decode_image as decode_image
from torchcaps.data.load import default_cache_dir as default_cache_dir, load_dataset as load_dataset
from torchcaps.data.masks import masked_set as masked_set, read_masks as read_masks
from torchcaps.data.mat import read_mat as read_mat
from torchcaps.data.pixels import center_crop as center_crop, random_crop as random_crop
from torchcaps.data.points import point_set as point_set
from torchcaps.data.preprocess import Preprocess as Preprocess
from torchcaps.data.sets.affnist import read_affnist as read_affnist
from torchcaps.data.sets.cifar10 import read_cifar as read_cifar
from torchcaps.data.sets.gtsrb import read_gtsrb as read_gtsrb
from torchcaps.data.sets.multi import PairMaker as PairMaker, make_pairs as make_pairs
from torchcaps.data.sets.placed import affine_copies as affine_copies, placed as placed
from torchcaps.data.sets.planes import make_planes as make_planes
from torchcaps.data.sets.shapes import render_shapes as render_shapes
from torchcaps.data.sets.smallnorb import (
    Views as Views,
    read_matrix as read_matrix,
    read_norb as read_norb,
    split_views as split_views,
)
from torchcaps.data.sets.svhn import read_svhn as read_svhn
from torchcaps.data.sets.synthnorb import render_synthnorb as render_synthnorb
from torchcaps.data.sources import (
    Archive as Archive,
    FileCheck as FileCheck,
    Mirror as Mirror,
    Rendering as Rendering,
    fetch_dataset as fetch_dataset,
    verify_dataset as verify_dataset,
)
from torchcaps.data.table import read_table as read_table
