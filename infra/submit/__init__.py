"""Jobs handed to a scheduler: one file a scheduler."""
