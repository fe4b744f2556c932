"""What touches the world: files, hosts, schedulers, clouds."""
