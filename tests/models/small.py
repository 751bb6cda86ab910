"""A small form of a model of each file: they cost milliseconds, and have every part of the published ones."""

import torch

import torchcaps as tc
from torchcaps.testing import seeded

SMALL = {
    "affcaps": {"img_size": 20, "channels": 6, "primary_types": 3},
    "canonical_capsules": {"img_size": (12, 1), "capsules": 3, "channels": 6, "decoder": (8, 5)},
    "capsule_head": {"img_size": 12, "types": 3, "dim": 4},
    "capsnet": {"img_size": 20, "channels": 8, "primary_types": 2},
    "cnn_baseline": {"img_size": 12, "channels": (4, 6), "kernels": (5, 3), "hidden": (8,)},
    "cnn_decoder": {"img_size": 12, "channels": (4, 6), "class_dim": 3, "decoder": (8, 10)},
    "cnn_matched": {"img_size": 20, "match": "matrix_caps_small"},
    "deepcaps": {"img_size": 16, "channels": 4, "types": 3, "class_dim": 5, "iterations": 2},
    "efficient_capsnet": {"img_size": 13},
    "efficient_capsnet_smallnorb": {"img_size": 23},
    "heinsen": {"img_size": 10, "channels": 8, "hidden": (4,)},
    "heinsen_2019": {"img_size": 13, "channels": 8, "parts": 3, "strides": (1, 2, 1)},
    "hvc": {"img_size": 11, "convolutions": 3, "branches": (1, 3)},
    "inverted_attention": {"img_size": 13, "backbone": "simple", "types": 2},
    "linear_head": {"img_size": 12},
    "matrix_caps": {"img_size": 18, "channels": 8, "primary_types": 2, "types": (3, 4)},
    "resnet20": {"img_size": 12, "width": 4},
    "scae": {"img_size": 24, "parts": 3, "objects": 4, "channels": 4, "units": 8},
    "segcaps": {"img_size": 16, "dim": 2},
    "sr_capsnet": {"img_size": 12, "depth": 2, "types": 4, "dim": 4},
    "transforming_autoencoder": {"img_size": 12, "capsules": 3},
    "tree_capsnet": {"img_size": 12, "num_classes": 3, "classes": ("a/0", "a/1", "b/2")},
    "unet": {"img_size": 16, "channels": 2, "levels": 3},
    "vb_caps": {"img_size": 18, "channels": 8, "primary_types": 2, "types": (3, 4)},
}

# Options of models whose published size costs seconds and proves nothing more; their counts are
# checked elsewhere.
SMALLER = SMALL | {
    "cnn_multimnist": {"channels": (16, 16), "hidden": (32,)},
    "deepcaps_small": {"channels": 8, "types": 4},
    # Layers so small that no loops are compiled for them, which takes seconds.
    "matrix_caps_small": SMALL["matrix_caps"],
    "segcaps_r1": {"dim": 2, "img_size": 16},
    "segcaps_small": {"dim": 2, "img_size": 16},
    "transforming_autoencoder": {"capsules": 4, "bounded": True},  # its outputs are pixels
    "unet_matched": {"channels": 2, "levels": 3, "img_size": 16},
}


def small_model(name, **options):
    """A small form of a model, for evaluation, with the same weights each time."""
    return tc.create_model(name, generator=seeded(), **SMALL[name] | options).eval()


def sample_images(model, count=2):
    """Noise of a model's size."""
    return torch.rand(count, *model.image_shape, generator=seeded())
