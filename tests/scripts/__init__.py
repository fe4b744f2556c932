"""Third-party-style training scripts that do not use headway."""
