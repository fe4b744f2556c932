"""Rules over several fields and over a job and its cluster, as problems; each runs when the sections that it reads are valid."""
