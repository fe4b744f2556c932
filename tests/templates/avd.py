"""Runs in the Python that has pyavd: validates structured configurations by AVD's schema, and renders each for EOS."""

import json
import sys

import pyavd  # type: ignore[import-not-found, unused-ignore]


def main() -> None:
    found = []
    for settings in json.load(sys.stdin):
        result = pyavd.validate_structured_config(settings)
        errors = [str(error) for error in result.validation_result.violations]
        found.append({"errors": errors, "text": "" if errors else pyavd.get_device_config(result.validated_data)})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
