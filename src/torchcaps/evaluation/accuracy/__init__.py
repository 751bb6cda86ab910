"""How often a model is right, and how sure it is."""
