"""The catalog as one value, with lookups whose errors suggest similar names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TypeVar

from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price, Region
from filmgate.catalog.llms import Llm
from filmgate.catalog.managed import TextApi, VideoApi
from filmgate.catalog.names import explain_unknown, find_known_model, fold_name
from filmgate.catalog.runs import Runs, ServedRun
from filmgate.catalog.video_models import VideoModel
from filmgate.errors import UsageError

Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class Catalog:
    """Every fact the planner uses, each with a source and a date."""

    gpus: Mapping[str, Gpu]
    instances: Mapping[str, Instance]
    prices: Mapping[tuple[str, str], Price]
    regions: Mapping[str, Region]
    video_apis: Mapping[str, VideoApi]
    text_apis: Mapping[str, TextApi]
    video_models: Mapping[str, VideoModel]
    llms: Mapping[str, Llm]
    runs: Runs
    served: tuple[ServedRun, ...] = ()

    def gpu(self, name: str) -> Gpu:
        """A GPU by its name or an alias."""
        wanted = fold_name(name)
        for gpu in self.gpus.values():
            if wanted in {fold_name(each) for each in (gpu.name, gpu.product, *gpu.aliases)}:
                return gpu
        return _find(self.gpus, name, "--gpu")

    def instance(self, name: str) -> Instance:
        return _find(self.instances, name, "--instance")

    def video_model(self, name: str) -> VideoModel:
        """A video model by its name or its id on the Hugging Face hub."""
        for model in self.video_models.values():
            if fold_name(name) in {fold_name(model.id), fold_name(model.repo or model.id)}:
                return model
        known = find_known_model(name)
        if known is None and (mistake := explain_unknown(name)):
            raise UsageError(mistake, option="--model")
        return _find(self.video_models, known.name if known else name, "--model")

    def llm(self, name: str) -> Llm:
        """A language model by its name or by a hub id that ends with it."""
        return _find(self.llms, _without_owner(name, self.llms), "--model")

    def has_llm(self, name: str) -> bool:
        """Whether `llm` finds this name."""
        return _without_owner(name, self.llms).strip().lower() in self.llms

    def region(self, name: str) -> Region:
        return _find(self.regions, name, "--region")

    def price(self, instance: str, region: str) -> Price | None:
        return self.prices.get((instance, region))

    def with_entries(
        self,
        *,
        gpus: Iterable[Gpu] = (),
        instances: Iterable[Instance] = (),
        prices: Iterable[Price] = (),
        video_models: Iterable[VideoModel] = (),
        llms: Iterable[Llm] = (),
        served: Iterable[ServedRun] = (),
    ) -> "Catalog":
        """A copy with these entries added; an entry with the same name is replaced."""
        return replace(
            self,
            gpus=dict(self.gpus) | {g.name: g for g in gpus},
            instances=dict(self.instances) | {i.name: i for i in instances},
            prices=dict(self.prices) | {(p.instance, p.region): p for p in prices},
            video_models=dict(self.video_models) | {m.id: m for m in video_models},
            llms=dict(self.llms) | {m.id: m for m in llms},
            served=(*self.served, *served),
        )


def _without_owner(name: str, known: Mapping[str, object]) -> str:
    """`llama-3.3-70b` for `meta-llama/Llama-3.3-70B-Instruct`; other names as they are."""
    last = name.strip().lower().rpartition("/")[2]
    for suffix in ("", "-instruct", "-it", "-chat", "-hf"):
        if "/" in name and last.removesuffix(suffix) in known:
            return last.removesuffix(suffix)
    return name


def _find(entries: Mapping[str, Entry], name: str, option: str) -> Entry:
    for key, entry in entries.items():
        if key.lower() == name.strip().lower():
            return entry
    similar = get_close_matches(name.lower(), [key.lower() for key in entries], n=3, cutoff=0.4)
    similar = similar or [key for key in entries if name.lower()[:4] in key.lower()][:3]
    hint = (
        f"similar names: {', '.join(similar)}" if similar else f"known: {', '.join(list(entries)[:12])} ..."
    )
    raise UsageError(f"{name!r} is not in the catalog; {hint}", option=option)
