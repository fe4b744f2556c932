"""What a script observes under `headway torchrun` is what it observes under torchrun."""
