"""What a script finds when it begins: variables, arguments, paths, signals, threads, streams, limits."""

import os
import resource
import signal
import sys

import facts

facts.write(
    environment=facts.variables(),
    error_file_name=os.path.basename(os.environ["TORCHELASTIC_ERROR_FILE"]),
    arguments=sys.argv,
    original=sys.orig_argv[1:],
    path=sys.path,
    executable=sys.executable,
    name=__name__,
    file=__file__,
    package=__package__,
    spec=__spec__ and (__spec__.name, __spec__.origin),
    main=sorted(name for name in vars(sys.modules["__main__"]) if name.startswith("__")),
    folder=os.getcwd(),
    signals=facts.handlers(),
    blocked=sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    threads=facts.threads(),
    streams=[
        (stream.encoding, stream.line_buffering, stream.isatty(), stream.fileno())
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ],
    limits={name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")},
    umask=oct(os.umask(0o022)),
    priority=os.nice(0),
    cpus=sorted(os.sched_getaffinity(0)),
    session=[os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)],
    flags=str(sys.flags),
    hooks=[sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace() is None],
    recursion=sys.getrecursionlimit(),
)
