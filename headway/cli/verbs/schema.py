"""`headway schema`: prints the documents' language as JSON Schema, for editors and other YAML validators."""

import argparse
import json

from headway.infra.providers import PROVIDERS
from headway.jobspec.parse import MODELS
from headway.jobspec.schema import Tables, document_schema
from headway.templates.schedulers import SCHEDULERS
from headway.templates.switches import SWITCHES
from headway.templates.trainers import TRAINERS

DATA = {name: trainer.data for name, trainer in TRAINERS.items()}
NEEDS = {name: trainer.needs for name, trainer in TRAINERS.items()}
ONLY = {name: trainer.only for name, trainer in TRAINERS.items()}
TABLES = Tables(SCHEDULERS, PROVIDERS, SWITCHES, TRAINERS, DATA, NEEDS, ONLY)


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = ", ".join(MODELS)
    parser.add_argument("kind", nargs="?", choices=list(MODELS), metavar="KIND", help=f"{kinds} (default: all)")


def run(args: argparse.Namespace) -> int:
    """Prints the schema."""
    print(json.dumps(document_schema(TABLES, args.kind), indent=2))
    return 0
