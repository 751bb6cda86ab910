"""Effect and benefit of the routing of a model."""
