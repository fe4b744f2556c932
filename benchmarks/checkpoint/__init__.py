"""What checkpoints cost, beside torch.distributed.checkpoint in the same processes."""
