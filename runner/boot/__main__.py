"""`python -m headway.runner.boot [-m] SCRIPT ARGS...`."""

from headway.runner.boot.script import main

if __name__ == "__main__":
    main()
