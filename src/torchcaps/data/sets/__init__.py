"""The named data sets, one file each; to add one, write its file and name it here."""

from torchcaps.data.sets import (
    affnist,
    cifar10,
    fashion_mnist,
    gtsrb,
    mnist,
    multi,
    placed,
    planes,
    shapes,
    smallnorb,
    svhn,
    synthnorb,
)
