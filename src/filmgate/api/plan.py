"""POST /v1/plan: the planner's answer for a video workload, computed in a time-limited child process."""

import json
import re
import subprocess
import sys
import time
from functools import cache, partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from filmgate.api.auth import Reader
from filmgate.api.forms import Form, read_form
from filmgate.api.openapi import PROBLEMS, form_body
from filmgate.api.services import services_of
from filmgate.api.waiting import call_slow_work
from filmgate.catalog.loader import load_catalog
from filmgate.errors import InvalidField
from filmgate.planner.fleet.traffic import TrafficShape

router = APIRouter(prefix="/v1/plan", tags=["planner"], responses=PROBLEMS)

PLAN_SECONDS = 20.0
_IMPOSSIBLE = 1  # exit status of a plan that no machine fulfils
_BAD_USAGE = 2
_OPTION = re.compile(r"error: (?:--([a-z-]+): )?(.*)", re.DOTALL)

Size = Annotated[str, Field(pattern=r"^[0-9]{2,5}x[0-9]{2,5}$", examples=["1280x720"])]


class PlanQuestion(Form):
    """The workload. The model is one of GET /v1/plan; folders of the server are not read.

    Without a size, clips have that of the model.
    """

    model: str = Field(max_length=100, examples=["wan2.1-t2v-14b"])
    size: Size | None = None
    seconds: float = Field(default=5.0, gt=0, le=600)
    clips_per_day: float = Field(default=500.0, gt=0, le=10_000_000)
    slo_seconds: float | None = Field(default=None, gt=0, le=86400)
    region: str | None = Field(default=None, max_length=40)
    traffic: TrafficShape = TrafficShape.STEADY


class PlanChoices(BaseModel):
    """What a question may name."""

    object: Literal["plan.choices"] = "plan.choices"
    models: list[str]
    regions: list[str]
    traffic: list[TrafficShape]


@router.get("")
async def list_choices(request: Request, _caller: Reader) -> PlanChoices:
    """The models and regions that a plan may name."""
    return await services_of(request).call(_choices)


@router.post("", openapi_extra=form_body(PlanQuestion))
async def plan_video(request: Request, caller: Reader) -> dict[str, Any]:
    """Which machines, how many, how fast and at what cost: the JSON of `filmgate plan video --json`."""
    question = await read_form(request, caller, PlanQuestion)
    return await call_slow_work(request, caller.id, partial(_plan, question))


@cache
def _choices() -> PlanChoices:
    catalog = load_catalog()
    return PlanChoices(
        models=list(catalog.video_models),
        regions=sorted(catalog.regions),
        traffic=list(TrafficShape),
    )


def _plan(question: PlanQuestion) -> dict[str, Any]:
    choices, model = _choices(), load_catalog().find_video_model(question.model)
    if model is None:
        raise InvalidField(
            f"the catalog has no such model; known: {', '.join(choices.models)}", option="model"
        )
    if question.region is not None and question.region not in choices.regions:
        raise InvalidField(f"no such region; known: {', '.join(choices.regions)}", option="region")
    given = dict(question) | {"model": model.id}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items() if value is not None]
    command = [sys.executable, "-m", "filmgate", "plan", "video", "--json", *options]
    done = _run_limited(command)
    if done.returncode == _BAD_USAGE and (match := _OPTION.match(done.stderr)):
        raise InvalidField(match[2].strip(), option=(match[1] or "").replace("-", "_") or None)
    if done.returncode != _IMPOSSIBLE:  # then the verdict says why, and what would be possible
        done.check_returncode()
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def _run_limited(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command for at most PLAN_SECONDS, counted from before its process starts.

    `subprocess.run` counts from after the start. On a busy machine the start itself can take long.
    """
    deadline = time.monotonic() + PLAN_SECONDS
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            output, errors = child.communicate(timeout=deadline - time.monotonic())
        except subprocess.TimeoutExpired as exc:
            child.kill()
            raise InvalidField(
                f"the plan took longer than {PLAN_SECONDS:.0f} s; `filmgate plan video` has no limit"
            ) from exc
    return subprocess.CompletedProcess(command, child.returncode, output, errors)
