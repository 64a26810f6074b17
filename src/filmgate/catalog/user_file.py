"""Reads a user's own GPUs, instances, prices and models from one TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from filmgate.catalog.catalog import Catalog
from filmgate.catalog.gpus import Gpu
from filmgate.catalog.instances import Instance, Price
from filmgate.catalog.llms import Llm
from filmgate.catalog.records import Record, parse_record, parse_rows, read_text
from filmgate.catalog.runs import ServedRun
from filmgate.catalog.video_models import VideoModel
from filmgate.errors import UsageError

OPTION = "--catalog"
SECTIONS = ("gpus", "instances", "prices", "llms", "video_models", "served_runs")
SHARED_COMPONENTS = ("vae", "text_encoders")
Row = Mapping[str, Any]


def with_user_file(catalog: Catalog, path: Path) -> Catalog:
    """The catalog with the entries of the file added. Every entry needs `as_of`. Raises UsageError."""
    try:
        tree = tomllib.loads(read_text(path, OPTION))
    except tomllib.TOMLDecodeError as exc:
        raise UsageError(f"{path} cannot be read: {exc}", option=OPTION) from exc
    unknown = tree.keys() - set(SECTIONS)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise UsageError(f"{path}: unknown section {names}; known: {', '.join(SECTIONS)}", option=OPTION)
    return _Sections(tree, path.name).added_to(catalog)


class _Sections:
    """The sections of one file. Rows without a source get the file's name."""

    def __init__(self, tree: Row, file: str) -> None:
        self._tree = tree
        self._file = file
        self._source = {"source": f"user file {file}"}

    def added_to(self, catalog: Catalog) -> Catalog:
        wider = catalog.with_entries(gpus=self._named(Gpu, "gpus", ("name", "product")))
        return wider.with_entries(
            instances=self._instances(wider),
            prices=self._listed(Price, "prices"),
            served=self._listed(ServedRun, "served_runs"),
            llms=self._named(Llm, "llms", ("id", "name")),
            video_models=[
                self._video_model(name, row, wider) for name, row in self._rows("video_models").items()
            ],
        )

    def _where(self, section: str) -> str:
        return f"{self._file} {section}"

    def _rows(self, section: str) -> dict[str, dict[str, Any]]:
        """The tables of a section, with the source filled in."""
        rows = parse_rows(
            dict[str, dict[str, Any]], self._tree.get(section, {}), self._where(section), OPTION
        )
        return {name: {**self._source, **row} for name, row in rows.items()}

    def _named(self, kind: type[Record], section: str, keys: tuple[str, ...]) -> list[Record]:
        """A section of tables. The name of a table is the default of these keys."""
        rows = {name: dict.fromkeys(keys, name) | row for name, row in self._rows(section).items()}
        found = parse_rows(dict[str, kind], rows, self._where(section), OPTION)  # type: ignore[valid-type]
        return list(found.values())

    def _listed(self, kind: type[Record], section: str) -> list[Record]:
        """A section that is a list of rows."""
        where = self._where(section)
        rows = parse_rows(list[dict[str, Any]], self._tree.get(section, []), where, OPTION)
        return parse_rows(list[kind], [self._source | row for row in rows], where, OPTION)  # type: ignore[valid-type]

    def _instances(self, catalog: Catalog) -> list[Instance]:
        rows = {}
        for name, row in self._rows("instances").items():
            gpu = self._gpu(name, row, catalog)
            defaults = {"name": name, "status": "on-demand", "gpu_count": 1, "gpu_mib": gpu.memory_mib}
            rows[name] = {**defaults, **row, "gpu": gpu.name}
        return list(parse_rows(dict[str, Instance], rows, self._where("instances"), OPTION).values())

    def _gpu(self, name: str, row: Row, catalog: Catalog) -> Gpu:
        if "gpu" not in row:
            raise UsageError(f"{self._where('instances')}: {name}: gpu is missing", option=OPTION)
        try:
            return catalog.gpu(str(row["gpu"]))
        except UsageError as exc:
            raise UsageError(f"{self._where('instances')}: {name}: gpu: {exc}", option=OPTION) from exc

    def _video_model(self, name: str, row: Row, catalog: Catalog) -> VideoModel:
        """A variant of the catalog model `base`; nested keys of `denoiser` and `defaults` may be given."""
        where = f"{self._where('video_models')}: {name}"
        if "base" not in row:
            raise UsageError(
                f"{where}: base is missing; name the catalog model it is based on", option=OPTION
            )
        if "as_of" not in row:
            raise UsageError(f"{where}: as_of is missing; give the date of these facts", option=OPTION)
        for key in row.keys() & set(SHARED_COMPONENTS):
            raise UsageError(f"{where}: {key} cannot be changed; choose another base", option=OPTION)
        try:
            base = catalog.video_model(str(row["base"]))
        except UsageError as exc:
            raise UsageError(f"{where}: base: {exc}", option=OPTION) from exc
        changes = {"name": name, **row, "id": name}
        del changes["base"]
        for part in ("denoiser", "defaults"):
            changes[part] = parse_record(
                type(getattr(base, part)),
                _merged(getattr(base, part), row.get(part, {})),
                f"{where}: {part}",
                OPTION,
            )
        model = parse_record(VideoModel, _merged(base, changes), where, OPTION)
        return _checked(model, where)


def _checked(model: VideoModel, where: str) -> VideoModel:
    """The model. Raises UsageError if it cannot render its own default clip."""
    frames, step = model.defaults.frames, model.frame_step
    if (frames - 1) % step:
        nearest = 1 + round((frames - 1) / step) * step
        raise UsageError(
            f"{where}: defaults: the model renders 1, {1 + step}, {1 + 2 * step} ... frames, not {frames}; "
            f"the nearest is {nearest}",
            option=OPTION,
        )
    for side, pixels in (("width", model.defaults.width), ("height", model.defaults.height)):
        if pixels % model.size_multiple:
            raise UsageError(
                f"{where}: defaults: {side} must be a multiple of {model.size_multiple}, not {pixels}",
                option=OPTION,
            )
    return model


def _merged(record: Any, changes: object) -> object:
    """The fields of a record with these changes. Another value is left for parsing to reject."""
    if not isinstance(changes, Mapping):
        return changes
    return {field.name: getattr(record, field.name) for field in fields(record)} | dict(changes)
