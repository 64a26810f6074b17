"""`filmgate plan`: which GPU, how fast, how many, what it costs, and when not to."""

import typer

from filmgate.cli.plan import compare, fit, llm, prices, rightsize, validate, video

app = typer.Typer(
    name="plan",
    help="Which GPU, how fast, how many, what it costs, and when not to.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("video")(video.plan_video_command)
app.command("llm")(llm.plan_llm_command)
app.command("compare")(compare.compare_command)
app.command("fit")(fit.fit_command)
app.command("rightsize")(rightsize.rightsize_command)
app.command("prices")(prices.prices_command)
app.command("validate")(validate.validate_command)
