"""What only a machine with a GPU can measure, and the results kept; all else is `torchcaps bench`."""
