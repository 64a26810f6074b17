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
_HUB_ENDINGS = ("", "-instruct", "-it", "-chat", "-hf")


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

    def is_instance(self, name: str) -> bool:
        """Whether the name is that of an instance type and not of a bare GPU. Types of AWS have a dot."""
        return "." in name or name.strip().lower() in map(str.lower, self.instances)

    def find_video_model(self, name: str) -> VideoModel | None:
        """A video model by its name or its id on the Hugging Face hub."""
        wanted = fold_name(name)
        for model in self.video_models.values():
            if wanted in {fold_name(model.id), fold_name(model.repo or model.id)}:
                return model
        known = find_known_model(name)
        return self.video_models.get(known.name) if known else None

    def video_model(self, name: str) -> VideoModel:
        """The same. Raises UsageError if there is none."""
        if model := self.find_video_model(name):
            return model
        if mistake := explain_unknown(name):
            raise UsageError(mistake, option="--model")
        raise _unknown(self.video_models, name, "--model")

    def find_llm(self, name: str) -> Llm | None:
        """A language model by its name, or by a hub id: `meta-llama/Llama-3.3-70B-Instruct`."""
        known = {key.lower(): model for key, model in self.llms.items()}
        wanted = name.strip().lower()
        _, owner, last = wanted.rpartition("/")
        names = [wanted, *(last.removesuffix(ending) for ending in _HUB_ENDINGS if owner)]
        return next((known[each] for each in names if each in known), None)

    def llm(self, name: str) -> Llm:
        """The same. Raises UsageError if there is none."""
        if model := self.find_llm(name):
            return model
        raise _unknown(self.llms, name, "--model")

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


def _find(entries: Mapping[str, Entry], name: str, option: str) -> Entry:
    for key, entry in entries.items():
        if key.lower() == name.strip().lower():
            return entry
    raise _unknown(entries, name, option)


def _unknown(entries: Mapping[str, object], name: str, option: str) -> UsageError:
    similar = get_close_matches(name.lower(), [key.lower() for key in entries], n=3, cutoff=0.4)
    similar = similar or [key for key in entries if name.lower()[:4] in key.lower()][:3]
    hint = (
        f"similar names: {', '.join(similar)}" if similar else f"known: {', '.join(list(entries)[:12])} ..."
    )
    return UsageError(f"{name!r} is not in the catalog; {hint}", option=option)
