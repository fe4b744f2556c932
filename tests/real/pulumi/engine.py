"""Provides Pulumi's engine with a separate home and backend."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.real.archives import ARCHIVES, unpacked

ARCHIVE = "pulumi"
INSTALL = "https://www.pulumi.com/docs/iac/download-install/"


@dataclass(frozen=True)
class PulumiEngine:
    """`programs` holds the engine and its plugins; all of its output is below `root`."""

    programs: Path
    root: Path

    @property
    def backend(self) -> str:
        return f"file://{self.root / 'backend'}"

    @property
    def env(self) -> dict[str, str]:
        """This process's environment with the engine in it, without other Pulumi settings."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PULUMI_")}
        return kept | {
            "PATH": f"{self.programs}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "PULUMI_HOME": str(self.root / "home"),
            "PULUMI_BACKEND_URL": self.backend,
            "PULUMI_CONFIG_PASSPHRASE": "of the tests",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        }


def engine(root: Path) -> PulumiEngine:
    """The engine on PATH, or else the archive's; raises FileNotFoundError, which `obstacle` foresees."""
    (root / "backend").mkdir(parents=True)
    found = shutil.which("pulumi")
    return PulumiEngine(Path(found).parent if found else unpacked(ARCHIVE), root)


def obstacle() -> str | None:
    """Why there is no engine here, with a remedy; None if there is one."""
    if shutil.which("pulumi") or (ARCHIVES / f"{ARCHIVE}.tar.xz").exists():
        return None
    return f"`pulumi` not found; {INSTALL} says how to install it"
