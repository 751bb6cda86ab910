"""What the routing of a model does, and what it is good for."""
