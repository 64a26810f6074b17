"""Machines that a user measured: Neuron devices, which the roofline and its calibration do not cover.

The bandwidth and the arithmetic rate that reproduce the run take the place of published figures, so that the
planner also answers for other lengths and batches of the same model, with a wide interval.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance
from filmgate.catalog.runs import ServedRun
from filmgate.planner.answer import Rejected
from filmgate.planner.llm.question import LlmQuestion
from filmgate.planner.llm.serving import ENGINE
from filmgate.planner.llm.step_time import Serving, between_tokens_seconds, prefill_step
from filmgate.planner.machines import Machine, price_in

ROUNDS = 60
START_GB_S, START_TFLOPS = 400.0, 100.0
ADVICE = "add a run that you measured to the --catalog file, and it is planned (docs/planner.md)"


def measured_machines(
    question: LlmQuestion, catalog: Catalog, constants: Mapping[str, float]
) -> list[Machine]:
    """The instance types without a roofline for which the user has a run of this model."""
    found = {}
    wanted = {catalog.instance(name).name for name in question.instances if catalog.is_instance(name)}
    for run in catalog.served:
        instance = catalog.instance(run.instance)
        is_wanted = not question.instances or instance.name in wanted
        is_same = catalog.llm(run.model).id == question.model.id and run.precision == question.precision
        if instance.unsupported_reason and is_wanted and is_same and question.gpu is None:
            gpu = device_from_run(run, instance, question, constants)
            price = price_in(catalog, instance.name, question.region)
            found[instance.name] = Machine(instance.name, gpu, instance.gpus, instance, price)
    return list(found.values())


def without_measured(rejected: Iterable[Rejected], machines: Iterable[Machine]) -> list[Rejected]:
    """The rejections of other machines, with advice where a run would help."""
    names = {machine.name for machine in machines}
    return [
        replace(one, reason=f"{one.reason}; {ADVICE}") if "Neuron" in one.reason else one
        for one in rejected
        if one.name not in names
    ]


def device_from_run(
    run: ServedRun, instance: Instance, question: LlmQuestion, constants: Mapping[str, float]
) -> Gpu:
    """A device whose predicted latencies are those of the run."""
    gpu = Gpu(
        name=instance.gpu,
        product=instance.gpu,
        generation="neuron",
        memory_mib=instance.gpu_mib,
        source=f"rates from a run: {run.source}",
        as_of=run.as_of,
        bandwidth_gb_s=START_GB_S,
        estimated_bf16_tflops=START_TFLOPS,
    )
    for _ in range(ROUNDS):
        serving = Serving(question.model, gpu, run.devices, run.precision, question.kv_precision, ENGINE)
        first = prefill_step(serving, run.prompt_tokens, 1, constants).seconds * 1e3
        between = between_tokens_seconds(
            serving, run.sequences, run.prompt_tokens, run.answer_tokens, constants
        )
        gpu = replace(
            gpu,
            bandwidth_gb_s=(gpu.bandwidth_gb_s or START_GB_S) * between * 1e3 / run.between_tokens_ms,
            estimated_bf16_tflops=(gpu.estimated_bf16_tflops or START_TFLOPS) * first / run.first_token_ms,
        )
    return gpu
