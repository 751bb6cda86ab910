"""Steps that tests of many packages share."""


def column(rows, name):
    """The entries of one column of a table whose rows are dictionaries."""
    return [row[name] for row in rows]
