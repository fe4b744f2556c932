"""Training scripts of others' kind, which know nothing of headway."""
