"""`filmgate plan`: which GPU, how fast, how many, what it costs, and when not to."""

import typer

from filmgate.cli.plan import compare, fit, llm, prices, rightsize, validate, video
from filmgate.cli.plan.question import question

app = typer.Typer(
    name="plan",
    help="Which GPU, how fast, how many, what it costs, and when not to.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("video")(question(video.answer_video, video.ask_video))
app.command("llm")(question(llm.answer_llm, llm.ask_llm, refuse=llm.NO_CLIP))
app.command("compare")(
    question(compare.answer_compare, video.ask_video, llm.ask_llm, compare.choose_machines)
)
app.command("fit")(question(fit.answer_fit))
app.command("rightsize")(question(rightsize.answer_rightsize, refuse=rightsize.NO_LENGTH))
app.command("prices")(prices.prices_command)
app.command("validate")(validate.validate_command)
