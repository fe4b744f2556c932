"""What only a GPU shows: the share of its peak. Not part of `make bench`."""
