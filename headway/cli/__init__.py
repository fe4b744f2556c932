"""The command `headway`: one file a verb."""
