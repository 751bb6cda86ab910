"""The named data sets, one file each; to add one, write its file and name it here."""

from torchcaps.data.sets import (  # noqa: I001 - packed imports
    affnist, cifar10, fashion_mnist, gtsrb, mnist, multi, placed, planes, shapes, smallnorb, svhn, synthnorb,
)  # fmt: skip
