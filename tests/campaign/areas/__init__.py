"""One module an area; see `campaign.core`."""
