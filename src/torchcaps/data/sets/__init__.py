"""The named data sets, one file each; to add one, write its file."""
