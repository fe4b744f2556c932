"""Specs that passed their checks, turned into plans; one concern a file."""
