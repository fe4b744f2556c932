"""Opens the cluster of the verbs of runs: the one that an option or HEADWAY_CLUSTER names, else this machine."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headway.cli.terminal import StopError, fail
from headway.cli.views.problems import print_problems
from headway.compile import compile_documents
from headway.compile.options import scheduler_options
from headway.infra.submit.runs import Runs
from headway.infra.submit.scheduler import Action, JobRefusedError, NotDoneError
from headway.infra.submit.shell import CommandError
from headway.infra.submit.site import Site, SiteError, opened, opened_here
from headway.jobspec.suggest import did_you_mean
from headway.runs import searched

CLUSTER = "HEADWAY_CLUSTER"


def stopping(verb: Callable[[], int]) -> int:
    """Run the verb; 1 for what the scheduler refuses, 3 for what does not answer."""
    try:
        return verb()
    except StopError as error:
        return fail(str(error), error.code) if str(error) else error.code
    except JobRefusedError as error:
        return fail(f"the scheduler refuses the job: {error}", 1)
    except (SiteError, CommandError) as error:
        return fail(str(error), 3)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """The option for the cluster of a run."""
    parser.add_argument(
        "--cluster",
        type=Path,
        metavar="FILE",
        help="a Cluster document, whose runs and scheduler are meant (default: $HEADWAY_CLUSTER, else the runs of this machine)",
    )


def add_run(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """The argument for the name of a run."""
    parser.add_argument("run", metavar="RUN", nargs=nargs, help="the name of a run, as `headway status` lists it")


def tell(text: str) -> None:
    """Report to the person who waits."""
    print(f"headway: {text}", file=sys.stderr)


@contextmanager
def site_of(cluster: Path | None, run: str | None = None) -> Iterator[Site]:
    """The site of the cluster in the file; without one that of HEADWAY_CLUSTER, else the folder of this machine that has the run.

    Raises StopError with 1 for mistakes in the document, SiteError.
    """
    file = cluster or (Path(named) if (named := os.environ.get(CLUSTER)) else None)
    if file is None:
        folders = searched(os.environ)
        name = run or ""
        chosen = next((folder for folder in folders if (folder / name).is_dir()), folders[0])
        with opened_here(chosen) as site:
            yield site
        return
    compiled = compile_documents([file], kinds=("Cluster",))
    print_problems(compiled.problems, sys.stderr)
    if compiled.problems.errors:
        raise StopError(1)
    planned = compiled.clusters[0]
    storage = planned.plan.shared_storage
    runs = "runs" if storage is None or storage.path is None else storage.path
    with opened(planned.plan.scheduler, scheduler_options(planned.document)[0], runs, file) as site:
        yield site


def known_run(runs: Runs, run: str) -> str:
    """The name of the run, which may be given as its path. Raises StopError with 1 for an unknown one."""
    name = Path(run).name
    if not {"handle.json", "submissions", "attempts"} & set(runs.files(name)):
        names = runs.names()
        near = f"; {did_you_mean(name, names, 'runs').text}" if names else ""
        raise StopError(1, f"there is no run `{name}` in `{runs.path}`{near}")
    return name


def carry_out(action: Action) -> None:
    """Print the command of the scheduler and do what it does. Raises StopError with 1 and the reason if it fails."""
    print(f"$ {action.shown}", file=sys.stderr)
    try:
        action.run()
    except NotDoneError as error:
        raise StopError(1, str(error)) from error
