"""Measures what a fabric costs to render and to audit, compared with pyavd."""
