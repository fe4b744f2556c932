"""The run's way through failures: goodput by simulation, the best checkpoint interval, the spares it needs."""
