"""The environment of the ranks as a file."""
