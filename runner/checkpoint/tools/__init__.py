"""What people do with stored checkpoints: list, verify, compare, export, import, adopt."""
