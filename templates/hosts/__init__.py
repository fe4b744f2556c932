"""Files of each node with adapters: a systemd unit that applies the QoS settings at every boot.

In: a node of a `ClusterPlan`. Out: `headway-qos` and its unit, by absolute path.
Start reading: `render.py`; `read.py` reads such a script, or another one, back into settings.
"""
