"""The language: YAML documents in, problems with their positions or finished plans out."""
