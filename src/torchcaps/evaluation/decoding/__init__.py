"""Images that a decoder draws from class capsules."""
