"""Measures the share of its peak that a GPU reaches. Not part of `make bench`."""
