"""Files of every node with adapters: a unit that sets their QoS at each start, since none of it outlives a reboot."""
