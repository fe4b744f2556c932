"""The keeper: a process of each node that holds captures of its ranks' state and brings them to storage, beside training."""
