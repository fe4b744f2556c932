"""What one coordinator on one core can do for 12,500 agents, beside torchrun's rendezvous."""
