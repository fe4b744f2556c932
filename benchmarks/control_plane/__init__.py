"""The capacity of one coordinator on one core for 12,500 agents, compared with torchrun's rendezvous."""
