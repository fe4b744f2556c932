"""Every claim on speed as a command that measures a named peer next to headway."""
