"""Defines places for files: mounted file systems, local disks, object stores."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from headway.jobspec.spec.section import Name, Section
from headway.jobspec.units import ByteRate, Bytes

# Bucket, then a prefix; credentials have no place in it.
StoreUrl = Annotated[str, StringConstraints(pattern=r"^(s3|gs|az)://[A-Za-z0-9][-A-Za-z0-9._]*(/[^\s?#]*)?$")]


class Storage(Section):
    """A place for files."""

    name: Name = Field(examples=["scratch"])
    """Name of the storage."""
    kind: Literal["posix", "object"] = Field(examples=["posix"])
    """How it is reached; `posix` is a mounted file system, `object` an object store."""
    path: str | None = Field(None, min_length=1, examples=["/scratch/runs"])
    """Directory of a file system; a relative one starts where the job is submitted. In that of the runs, `{user}` is the submitting
    user's name, so that each user of a team's file has their own runs."""
    url: StoreUrl | None = Field(None, examples=["s3://training/checkpoints"])
    """Bucket and prefix of an object store."""
    shared: bool = Field(False, examples=[True])
    """Whether every node sees the same files. The first shared file system holds the runs."""
    hard_links: bool = Field(True, examples=[False])
    """Whether a file system has hard links, which create a file atomically and only once; mounted object stores have none."""
    groups: tuple[Name, ...] = Field((), examples=[["gpu"]])
    """Groups of nodes that reach it; all of them when left out."""
    write: ByteRate | None = Field(None, ge=1, examples=["200GB/s"])
    """Speed of writing, over all nodes."""
    read: ByteRate | None = Field(None, ge=1, examples=["400GB/s"])
    """Speed of reading, over all nodes."""
    capacity: Bytes | None = Field(None, ge=1, examples=["2PB"])
    """Room on it."""
