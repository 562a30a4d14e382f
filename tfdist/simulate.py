"""The command `python -m tfdist.simulate`: training on clusters that you do not have.

Given a function that builds a model, it forecasts steps per second, what limits them, and
what a failed ps costs. Given a file of `launch.speedup`, it predicts the measured curve.
"""

import sys


def main(argv: list[str]) -> int:
    """Runs the command for a model or a file; returns the exit status."""
    ours = argv[: argv.index("--")] if "--" in argv else argv
    names = [each for each in ours[1:] if not each.startswith("-")]
    if names and names[0].endswith(".json"):
        from tfdist.simulation.command import main as predict

        return predict(argv)
    from tfdist.planning.forecast_command import main as forecast

    return forecast(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
