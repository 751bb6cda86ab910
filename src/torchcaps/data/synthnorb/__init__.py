"""The renderer of synthNORB: toys made of solids, photographed on a table."""
