"""Tests that a script observes the same under `headway torchrun` as under torchrun."""
