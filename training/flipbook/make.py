"""Runs all training stages, or only those that are given, for a machine with a time limit.

A stage is given with its seconds and, if it takes two runs, with the position in its schedule to stop at:
`vae:260 pool:95 transformer:120@0.28`, then `transformer:315 distill:80 export pack`, then `finetune:480`.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

MODULES = {
    "smoke": "smoke",
    "vae": "train_vae",
    "pool": "build_pool",
    "transformer": "train_transformer",
    "distill": "distill",
    "draft": "export",
    "export": "export",
    "finetune": "finetune_decoder",
    "evaluate": "evaluate",
    "pack": "archive",
}
COMPILED = {"smoke", "vae", "transformer", "distill", "finetune"}
WHOLE = "vae:260 pool:95 transformer:435 distill:80 export finetune:480 evaluate"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage from the command line."""

    name: str
    seconds: float | None = None
    until: float | None = None

    @classmethod
    def parse(cls, text: str) -> "Stage":
        name, _, rest = text.partition(":")
        seconds, _, until = rest.partition("@")
        if name not in MODULES:
            raise SystemExit(f"unknown stage {name!r}; choose one of: {', '.join(MODULES)}")
        return cls(name, float(seconds) if seconds else None, float(until) if until else None)

    def command(self, work: Path, out: Path, extra: list[str]) -> list[str]:
        command = [sys.executable, "-m", f"training.flipbook.{MODULES[self.name]}"]
        if self.name == "evaluate":
            command += ["--model", str(latest_result(work)), "--batch", "10", "--processes", "4"]
            return [*command, "--out", str(out)]
        if self.name == "pack":
            return [*command, "pack", str(latest_result(work)), "--out", str(out), "--name", "flipbook"]
        command += ["--work", str(work)]
        if self.name in {"smoke", "finetune"}:
            command += ["--out", str(out)]
        if self.name == "draft":
            command += ["--undistilled", "--out", str(work / "draft")]
        if self.seconds is not None:
            command += ["--seconds", f"{self.seconds:g}"]
        if self.until is not None:
            command += ["--until", f"{self.until:g}"]
        return command + (extra if self.name in COMPILED else [])


def latest_result(work: Path) -> Path:
    """The result of the last stage: the fine-tuned model, the model, its undistilled draft, or the VAE."""
    for name in ("finetuned", "model", "draft", "vae"):
        if (work / name).exists():
            return work / name
    raise SystemExit(f"no result in {work}; run a stage first")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stages", nargs="*", help=f"default: {WHOLE}")
    parser.add_argument("--work", type=Path, default=Path("out/flipbook"))
    parser.add_argument("--out", type=Path, default=Path("out/flipbook/report"))
    parser.add_argument(
        "--smoke", action="store_true", help="a few seconds of every stage at real batch sizes"
    )
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    stages = ["smoke"] if options.smoke else options.stages or WHOLE.split()
    extra = ["--no-compile"] if options.no_compile else []
    options.out.mkdir(parents=True, exist_ok=True)
    for stage in map(Stage.parse, stages):
        started = time.monotonic()
        subprocess.run(stage.command(options.work, options.out, extra), check=True)
        print(f"{stage.name} took {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
