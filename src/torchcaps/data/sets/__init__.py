"""The named data sets, one file each; to add one, write its file and name it here."""

from torchcaps.data.sets import cifar10, digits, fashion_mnist, mnist
