"""`filmgate plan`: which GPUs you need, how many, how fast they are and what they cost."""

import typer

from filmgate.cli.plan import compare, fit, llm, prices, rightsize, validate, video
from filmgate.cli.plan.command import plan_command

app = typer.Typer(
    name="plan",
    help="Plan which GPUs you need, how many, and what they cost.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("video")(plan_command(video.answer_video, video.video_question))
app.command("llm")(plan_command(llm.answer_llm, llm.llm_question))
app.command("compare")(
    plan_command(compare.answer_compare, video.video_question, llm.llm_question, compare.machines_to_compare)
)
app.command("fit")(plan_command(fit.answer_fit))
app.command("rightsize")(plan_command(rightsize.answer_rightsize))
app.command("prices")(prices.prices_command)
app.command("validate")(validate.validate_command)
