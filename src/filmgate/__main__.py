"""`python -m filmgate` is the `filmgate` command."""

from filmgate.cli import main

if __name__ == "__main__":
    main()
