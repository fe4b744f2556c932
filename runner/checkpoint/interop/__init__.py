"""Checkpoints in other formats: torch.distributed.checkpoint (DCP) and safetensors.

In: a DCP save or load with headway's storage classes; a directory of plain DCP or safetensors.
Out: headway's chunks and hashes, or an `Archive` (`archive.py`) that is read tensor by tensor.
Start reading: `archive.py`, `dcp.py`, `huggingface.py`.
"""
