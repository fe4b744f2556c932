"""What only a GPU shows. Run by `make test-gpu` on a machine that has one; never part of `make test`."""
