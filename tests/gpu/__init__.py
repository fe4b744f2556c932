"""Tests that need a GPU. `make test-gpu` runs them on a machine that has one; they are never part of `make test`."""
