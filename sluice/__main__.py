"""The program `sluice`."""

from sluice.support.startup import importing


def main() -> None:
    """Run the command that the program's arguments name."""
    with importing():
        from sluice.commands.cli import app
    app()


if __name__ == "__main__":
    main()
