"""The model endpoint: requests out, streamed replies in, gathered to whole ones."""
