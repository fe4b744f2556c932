"""Plans in, files out; pure. One folder a kind, one literal table above the folders of a family."""
