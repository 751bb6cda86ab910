"""What a model makes of images that were changed, or of a kind it never saw."""
