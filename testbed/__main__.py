"""`python -m testbed SUBCOMMAND` is the program `testbed`."""

from testbed.cli import main

if __name__ == "__main__":
    main()
