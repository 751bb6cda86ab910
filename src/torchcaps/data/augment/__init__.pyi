from torchcaps.data.augment.transforms import (
    AUGMENTATIONS as AUGMENTATIONS,
    Augmentation as Augmentation,
    Transforms as Transforms,
    ordered_augmentations as ordered_augmentations,
    refuse_augmentations as refuse_augmentations,
    register_augmentation as register_augmentation,
)
