"""Makes corpora: text to token shards that the builtin trainer maps into memory.

In: text or JSON lines, plain or compressed, and a tokenizer.json. Out: a folder of shards with its index
(`runner/contract/corpus.py`), the same whatever the number of processes and however often they were killed.
Start reading: `prepare.py` (the whole), `division.py` (which part of the text becomes which shard),
`text.py` (how documents are read), `shard.py` (what one process does).
"""
