"""`filmgate plan` from the shell: one JSON object, errors that name the option, no torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from filmgate.cli import app, name_flag
from filmgate.errors import UsageError

KEYS = ["verdict", "question", "is_possible", "kind", "memory", "time", "fleet", "cost", "options",
        "rejected", "serving_patterns", "plan_b", "assumptions", "sources"]  # fmt: skip
VIDEO = ["video", "--model", "wan2.1-t2v-14b", "--size", "1280x720", "--seconds", "5", "--steps", "50"]
QUESTIONS = {
    "video": [*VIDEO, "--clips-per-day", "5000", "--slo-seconds", "3600"],
    "video on a gpu": ["video", "--model", "ltx-video-2b-0.9.0", "--gpu", "H100", "--frames", "121"],
    "llm": ["llm", "--model", "llama-3.3-70b", "--precision", "fp8", "--context", "8192",
            "--concurrency", "16", "--ttft-ms", "600", "--tbt-ms", "50"],
    "compare": ["compare", "--model", "llama-3.3-70b", "--precision", "fp8",
                "--instances", "g6e.24xlarge,g7e.12xlarge"],
    "compare video": ["compare", "--model", "wan2.1-t2v-1.3b", "--instances", "g6e.xlarge,g7e.2xlarge"],
    "compare gpus": ["compare", "--model", "wan2.1-t2v-1.3b", "--gpu", "H100,H200", "--frames", "81"],
    "compare both": ["compare", "--model", "llama-3.3-70b", "--precision", "fp8",
                     "--gpu", "H200", "--instances", "g7e.12xlarge"],
    "llm fleet": ["llm", "--model", "llama-3.1-8b", "--requests-per-second", "20", "--traffic", "bursty",
                  "--ttft-ms", "800", "--tbt-ms", "40"],
    "llm on a gpu": ["llm", "--model", "llama-3.3-70b", "--precision", "fp8", "--gpu", "H200"],
    "fit": ["fit", "--instance", "g7e.2xlarge"],
    "fit a gpu": ["fit", "--gpu", "L4", "--frames", "33"],
}  # fmt: skip
LLM = ["llm", "--model", "llama-3.3-70b"]
COMPARE = ["compare", "--gpu", "H100", "--model"]


def run(*args):
    return CliRunner().invoke(app, ["plan", *args], catch_exceptions=True)


@pytest.mark.parametrize("question", QUESTIONS)
def test_json_is_one_object_with_the_documented_keys(question):
    result = run(*QUESTIONS[question], "--json")
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.stdout)) == KEYS


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_verdict_comes_first(question):
    verdict = json.loads(run(*QUESTIONS[question], "--json").stdout)["verdict"]
    assert " ".join(run(*QUESTIONS[question]).stdout.split()).startswith(" ".join(verdict.split()))


@pytest.mark.parametrize("question", ["video", "llm", "fit"])
def test_every_assumption_and_source_is_printed(question):
    answer, text = json.loads(run(*QUESTIONS[question], "--json").stdout), run(*QUESTIONS[question]).stdout
    assert answer["sources"]
    assert not [fact for fact in (*answer["assumptions"], *answer["sources"]) if f"- {fact}\n" not in text]


def test_an_impossible_plan_exits_with_one_and_says_so_in_json():
    result = run(*VIDEO, "--slo-seconds", "90", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["is_possible"] is False


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Wan-AI/Wan2.1-T2V-14B-Diffusers", "Wan 2.1 T2V 14B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B"),
    ],
)
def test_a_hub_id_is_the_catalog_model(name, known):
    result = run("compare", "--model", name, "--gpu", "H200,B200", "--json")
    assert json.loads(result.stdout)["question"].startswith(known)


@pytest.mark.parametrize("name", ["EU", "eu", "GDPR", "gdpr"])
def test_a_law_is_the_jurisdiction_of_its_data(name):
    answer = json.loads(run(*LLM, "--region", "us-east-1", "--residency", name, "--json").stdout)
    assert "data stays in EU" in answer["question"]
    assert "Give a --region in EU: eu-central-1" in answer["verdict"]


def test_recorded_arrivals_are_read_with_or_without_a_header(tmp_path):
    """A byte order mark, as Excel and PowerShell write it, does not make the first arrival a header."""
    seconds, times = tmp_path / "seconds.csv", tmp_path / "times.csv"
    seconds.write_text("\n".join(str(600 * i) for i in range(30)), encoding="utf-8-sig")
    stamps = [f"2026-11-{1 + i // 24:02}T{i % 24:02}:00:00+00:00,clip" for i in range(30)]
    times.write_text("\n".join(["created_at,what", *stamps]))
    for file, per_hour in ((seconds, 6), (times, 1)):
        model = ["--model", "wan2.1-t2v-1.3b", "--slo-seconds", "3600"]
        answer = json.loads(run("video", *model, "--arrivals", str(file), "--json").stdout)
        assert answer["fleet"]["arrivals"]["peak_per_hour"] == pytest.approx(per_hour)
        assert "30 recorded arrivals" in answer["question"]


@pytest.mark.parametrize(
    ("args", "option", "message"),
    [
        ([*VIDEO, "--clips-per-day", "-5"], "--clips-per-day", "positive"),
        ([*VIDEO, "--clips-per-day", "inf"], "--clips-per-day", "positive"),
        ([*VIDEO, "--clips-per-day", "nan"], "--clips-per-day", "positive"),
        ([*VIDEO, "--slo-seconds", "0"], "--slo-seconds", "positive"),
        ([*VIDEO, "--frames", "81"], "--frames", "not both"),
        ([*VIDEO, "--precision", "fp3"], "--precision", "use bf16"),
        ([*VIDEO, "--region", "us-eest-1"], "--region", "us-east-1"),
        ([*VIDEO, "--gpu", "H1000"], "--gpu", "H100"),
        ([*VIDEO, "--commit-discount", "40"], "--commit-discount", "share"),
        ([*VIDEO, "--residency", "XX"], "--residency", "GDPR"),
        ([*VIDEO, "--safety-factor", "0.1"], "--safety-factor", "at least 1"),
        ([*VIDEO, "--arrivals", "none.csv"], "--arrivals", "cannot be read"),
        ([*VIDEO, "--arrivals", "x.csv", "--clips-per-day", "5"], "--arrivals", "not both"),
        ([*VIDEO, "--arrivals", "x.csv", "--traffic", "bursty"], "--arrivals", "or --traffic, not both"),
        ([*VIDEO, "--traffic", "bursty"], "--traffic", "give --clips-per-day"),
        ([*LLM, "--traffic", "bursty"], "--traffic", "give --requests-per-day"),
        ([*LLM, "--answer-tokens", "9000"], "--answer-tokens", "--context"),
        (["video", "--model", "wan-2.1-14b"], "--model", "wan2.1-t2v-14b"),
        (["video", "--model", "wan2.1-t2v-14b", "--size", "big"], "--size", "1280x720"),
        (["video", "--model", "wan2.1-t2v-14b", "--size", "1281x720"], "--size", "1280x720"),
        (["video", "--model", "wan2.1-t2v-14b", "--frames", "80"], "--frames", "81"),
        (["video", "--model", "wan2.1-t2v-14b", "--seconds", "9999"], "--seconds", "nearest length"),
        (["video", "--model", "wan2.1-t2v-14b", "--steps", "0"], "--steps", "between 1 and"),
        (["video", "--model", "wan2.1-t2v-14b", "--fps", "0"], "--fps", "between 1 and"),
        (["llm", "--model", "lama-3.3-70b"], "--model", "llama-3.3-70b"),
        (["llm", "--model", "llama-3.3-70b", "--concurrency", "-1"], "--concurrency", "positive"),
        (["compare", "--model", "llama-3.3-70b", "--instances", ","], "--instances", "at least one"),
        (["compare", "--model", "lama", "--instances", "g6e.xlarge"], "--model", "llama"),
        (["compare", "--model", "llama-3.3-70b"], "--instances", "--gpu H100"),
        (["compare", "--model", "llama-3.3-70b", "--gpu", ""], "--gpu", "at least one"),
        (["compare", "--model", "llama-3.3-70b", "--gpu", "H1000"], "--gpu", "H100"),
        ([*COMPARE, "llama-3.3-70b", "--frames", "81"], "--frames", "language model"),
        ([*COMPARE, "llama-3.3-70b", "--clips-per-day", "9"], "--clips-per-day", "language model"),
        ([*COMPARE, "wan2.1-t2v-1.3b", "--ttft-ms", "9"], "--ttft-ms", "video model"),
        ([*COMPARE, "wan2.1-t2v-1.3b", "--precision", "int4"], "--precision", "use bf16, int8, fp8"),
        ([*COMPARE, "llama-3.3-70b", "--kv-precision", "int4"], "--kv-precision", "use bf16, fp8"),
        ([*LLM, "--requests-per-day", "0"], "--requests-per-day", "positive"),
        ([*LLM, "--requests-per-day", "9", "--requests-per-second", "9"], "--requests-per-day", "or"),
        (["fit"], "--instance", "--gpu"),
        (["fit", "--instance", "g7e.2xlarge", "--gpu", "L4"], "--instance", "either"),
        (["fit", "--gpu", "L4", "--frames", "81", "--seconds", "5"], "--frames", "not both"),
        (["fit", "--instance", "g7e.xlarge"], "--instance", "g7e.2xlarge"),
        (["rightsize", "--metrics-file", "none.csv", "--gpu", "L4"], "--metrics-file", "cannot be read"),
        (["prices", "--output", "prices.csv"], "--output", "--refresh"),
    ],
)
def test_a_wrong_value_is_rejected_with_its_option_and_a_remedy(args, option, message):
    error = run(*args).exception
    assert isinstance(error, UsageError), error
    assert name_flag(error) == option
    assert message.lower() in str(error).lower()


def test_gpus_and_instances_are_compared_in_one_list():
    answer = json.loads(run(*QUESTIONS["compare both"], "--json").stdout)
    assert {option["name"] for option in answer["options"]} == {"H200", "g7e.12xlarge"}
    assert answer["rejected"] == []


def test_a_compared_machine_has_the_same_time_as_alone():
    length = ["--frames", "121", "--model", "ltx-video-2b-0.9.5"]
    compared = json.loads(run("compare", "--gpu", "H100,L4", *length, "--json").stdout)["options"]
    alone = json.loads(run("video", "--gpu", "H100", *length, "--json").stdout)["options"][0]
    assert next(option for option in compared if option["name"] == "H100")["seconds"] == alone["seconds"]


def test_options_of_other_commands_are_not_in_the_help():
    assert "--frames" not in run("llm", "--help").stdout
    assert "--frames" in run("fit", "--help").stdout


def test_the_record_and_the_page_are_written_and_named_on_stderr(tmp_path):
    adr, page = tmp_path / "plan.md", tmp_path / "plan.html"
    result = run(*QUESTIONS["video"], "--json", "--adr", str(adr), "--html", str(page))
    assert "wrote" in result.stderr
    assert adr.read_text().startswith("# Capacity decision")
    assert page.read_text().startswith("<!doctype html>")


def test_a_week_of_dcgm_metrics_is_judged(tmp_path):
    file = tmp_path / "week.csv"
    rows = [f"{i},{12},{9000}" for i in range(200)]
    file.write_text("timestamp,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_DEV_FB_USED\n" + "\n".join(rows))
    result = run("rightsize", "--metrics-file", str(file), "--instance", "g7e.2xlarge", "--json")
    answer = json.loads(result.stdout)
    assert "too big" in answer["verdict"]
    assert answer["fleet"]["memory_p99_bytes"] == 9000 << 20


def test_prices_are_listed_with_their_date():
    rows = json.loads(run("prices", "--instance", "g7e.2xlarge", "--json").stdout)["prices"]
    assert {row["as_of"] for row in rows} == {"2026-08-22"}
    assert {"us-east-1", "eu-central-1"} <= {row["region"] for row in rows}


def test_planning_starts_without_torch():
    code = (
        "import sys\n"
        "from filmgate.cli.plan import video\n"
        "from filmgate.catalog.loader import load_calibration, load_catalog\n"
        "from filmgate.planner.fleet.traffic import traffic_of\n"
        "from filmgate.planner.video.question import VideoQuestion\n"
        "from filmgate.planner.video.answer import plan_video\n"
        "from filmgate.planner.video.clip import clip_for\n"
        "catalog = load_catalog()\n"
        "model = catalog.video_model('wan2.1-t2v-14b')\n"
        "question = VideoQuestion(model, clip_for(model), traffic=traffic_of(500), slo_seconds=600)\n"
        "plan_video(question, catalog, load_calibration())\n"
        "heavy = {'torch', 'av', 'numpy', 'diffusers', 'transformers', 'boto3'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_help_lists_every_question():
    text = run("--help").stdout
    assert all(name in text for name in ("video", "llm", "compare", "fit", "rightsize", "prices", "validate"))


def test_the_example_of_the_readme_is_one_that_filmgate_runs():
    lines = (Path(__file__).parents[3] / "README.md").read_text().splitlines()
    example = next(line for line in lines if "filmgate plan video" in line)
    result = run(*example.partition(" plan ")[2].split(), "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert answer["is_possible"]
    assert answer["verdict"].startswith("Run ")
    assert answer["options"][0]["gpus_per_replica"] == 1
