"""`python -m filmgate` is the `filmgate` command."""

from filmgate.cli import main
from filmgate.cli.quick_exit import quick_exit


def run() -> None:
    """The program of the package."""
    with quick_exit():
        main()


if __name__ == "__main__":
    run()
