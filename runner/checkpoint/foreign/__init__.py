"""Checkpoints of others: torch.distributed.checkpoint, through headway's storage or as it writes them itself, and safetensors."""
