"""Builds a container image without a registry and without content: it shows what a pod mounts from its node."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

# .test is a reserved domain: a node without the image cannot fetch another one by this name
IMAGE = "headway.test/host:1"
FOLDERS = ("dev", "etc", "proc", "root", "run", "sys", "tmp", "usr", "var", "pause")
LINKS = ("bin", "lib", "lib64", "sbin")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"


def write_image(path: Path, busybox: Path) -> None:
    """IMAGE as an archive that `ctr images import` reads: /bin, /lib, ... are links into /usr, where a pod mounts the machine's.

    Without arguments it waits, which makes it the sandbox of every pod too.
    """
    layer = _layer(busybox)
    configuration = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Cmd": ["/pause/busybox", "sleep", "2147483647"], "Env": [PATH]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
            "history": [{"created_by": "headway"}],
        }
    ).encode()
    name = f"{hashlib.sha256(configuration).hexdigest()}.json"
    manifest = json.dumps([{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(path, "w") as archive:
        for member, content in ((name, configuration), ("layer.tar", layer), ("manifest.json", manifest)):
            _add_file(archive, member, content)


def _layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(folder)
        for name in LINKS:
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{name}"
            archive.addfile(link)
        _add_file(archive, "pause/busybox", busybox.read_bytes(), 0o755)
        _add_file(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        _add_file(archive, "etc/group", b"root:x:0:\n")
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))
