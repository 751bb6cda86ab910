"""What the decoder draws from class capsules."""
