"""Programs that `tests/support/worlds.py` (`run_world`) starts as the ranks of a small world."""
