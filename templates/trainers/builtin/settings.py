"""Names the files that the builtin trainer starts from."""

from collections.abc import Mapping

from headway.jobspec.document import Path
from headway.jobspec.plan import JobPlan
from headway.templates.trainers.builtin.options import BuiltinOptions


def files(options: BuiltinOptions, plan: JobPlan) -> Mapping[Path, str]:
    """Return the patterns of the data's files, by their path in the spec."""
    data = plan.spec["data"]
    if data is None or data["kind"] != "files":
        return {}
    return {("data", "options", "paths", index): pattern for index, pattern in enumerate(data["options"]["paths"])}
