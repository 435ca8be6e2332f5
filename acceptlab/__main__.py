"""`python -m acceptlab` is the `acceptlab` command."""

from acceptlab.cli import main

if __name__ == "__main__":
    main()
