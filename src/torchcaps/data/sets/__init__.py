"""The named data sets, a file each; and the formats that belong to no set."""

from torchcaps.data import arrays as arrays, table as table
