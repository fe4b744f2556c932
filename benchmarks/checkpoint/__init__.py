"""The cost of checkpoints, compared with torch.distributed.checkpoint in the same processes."""
