"""Hugging Face hub models: pulled at one revision, checked, and loaded at that revision from then on.

The files are in the hub library's own cache, so other programs find them too. Next to them, PIN_FILE records
the revision, the licence and the SHA-256 of every file. Only `filmgate models pull`, or a location with
another @REVISION, changes the revision.
"""

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from huggingface_hub import HfApi, constants, hf_hub_download, scan_cache_dir
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from filmgate.errors import ModelError, UsageError
from filmgate.models.weights.cache import Verification
from filmgate.models.weights.fetch import ReportProgress
from filmgate.models.weights.manifest import (
    INDEX_FILE,
    FileRecord,
    Manifest,
    hash_file,
    is_variant,
    parse_manifest,
)
from filmgate.models.weights.outages import find_outage

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

PIN_FILE = "filmgate-pin.json"
_SUFFIXES = (".json", ".txt", ".model", ".safetensors", ".jinja")
_CONNECTIONS = 4


@dataclass(frozen=True, slots=True)
class HubModel:
    """A hub model on this machine, at its pinned revision. `requested` is the tag or branch of its pull."""

    id: str
    revision: str
    licence: str
    manifest: Manifest
    requested: str = ""

    @property
    def folder(self) -> Path:
        return _repository(self.id) / "snapshots" / self.revision

    @property
    def is_whole(self) -> bool:
        return all((self.folder / file.path).is_file() for file in self.manifest.files)


def find_hub_model(text: str) -> HubModel | None:
    """The pinned model OWNER/NAME, or OWNER/NAME@REVISION if that revision is the pinned one.

    A tag or a branch means the revision that it had when it was pulled.
    """
    hub_id, _, revision = text.partition("@")
    if (model := _read_pin(hub_id)) is None:
        return None
    is_pinned = revision == model.requested or model.revision.startswith(revision)
    return model if is_pinned and model.is_whole else None


def list_hub_models() -> list[HubModel]:
    """All pinned models, whole or not, by id."""
    pins = sorted(Path(constants.HF_HUB_CACHE).glob(f"models--*/{PIN_FILE}"))
    ids = (pin.parent.name.removeprefix("models--").replace("--", "/", 1) for pin in pins)
    return [model for hub_id in ids if (model := _read_pin(hub_id)) is not None]


def is_in_hub_cache(hub_id: str) -> bool:
    """Whether another program downloaded the model; the loader finds it by its id."""
    ref = _repository(hub_id) / "refs" / "main"
    return ref.is_file() and (ref.parents[1] / "snapshots" / ref.read_text() / INDEX_FILE).exists()


def ensure_hub_model(text: str, report: ReportProgress | None = None) -> str:
    """The folder of the pinned model, pulled if there is none."""
    if (found := find_hub_model(text)) is not None:
        return str(found.folder)
    if "@" not in text and is_in_hub_cache(text):
        return text
    return str(pull_hub_model(text, report).folder)


def ensure_hub_adapter(text: str) -> Path:
    """The file or folder of the adapter OWNER/NAME[@REVISION][/FILE.safetensors], pulled if necessary."""
    owner, name, *inside = text.split("/", 2)
    repository, path = f"{owner}/{name}", inside[0] if inside else ""
    found = find_hub_model(repository)
    if found is None or not _adapter_files(found, path):
        kept = () if found is None else tuple(file.path for file in found.manifest.files)
        pinned = repository if found is None else f"{found.id}@{found.revision}"
        found = pull_hub_model(pinned, choose=lambda info: _choose_adapter(info, path, kept))
    names = _adapter_files(found, path)
    if len(names) != 1:
        raise _must_name_one(found.id, path, names, names)
    return found.folder / names[0]


def _adapter_files(model: HubModel, path: str) -> list[str]:
    """The named file, or all safetensors files in the root, if they are pulled."""
    names = [file.path for file in model.manifest.files]
    return [name for name in names if (name == path if path else _is_adapter(name))]


def _is_adapter(path: str) -> bool:
    return "/" not in path and path.endswith(".safetensors")


def _choose_adapter(info: "ModelInfo", path: str, kept: tuple[str, ...]) -> dict[str, int]:
    """Bytes of the adapter's file, and of the files that were pulled before."""
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    names = [path] if path in sizes else [name for name in sizes if not path and _is_adapter(name)]
    if len(names) != 1:
        raise _must_name_one(info.id, path, names, [name for name in sizes if name.endswith(".safetensors")])
    return {name: size for name, size in sizes.items() if name in (*names, *kept)}


def _must_name_one(hub_id: str, path: str, names: Sequence[str], others: Sequence[str]) -> UsageError:
    example = f"{hub_id}/{min(others)}" if others else "OWNER/NAME/FILE.safetensors"
    return UsageError(
        f"{hub_id} has {'no file ' + path if path else f'{len(names)} safetensors files'}; name one of "
        f"{', '.join(sorted(others)) or 'another repository'}, as in {example}",
        option="models.adapters_file",
    )


def evict_hub_model(hub_id: str) -> bool:
    """Delete the pinned revision and its pin; False if none is pinned. The cache's other revisions stay."""
    if (model := _read_pin(hub_id)) is None:
        return False
    (_repository(hub_id) / PIN_FILE).unlink()
    scan_cache_dir(constants.HF_HUB_CACHE).delete_revisions(model.revision).execute()
    return True


def pull_hub_model(
    text: str,
    report: ReportProgress | None = None,
    describe: Callable[[str], None] | None = None,
    choose: "Callable[[ModelInfo], dict[str, int]] | None" = None,
) -> HubModel:
    """Download OWNER/NAME at its newest revision, or at @REVISION, compare checksums and pin it.

    `choose` picks the files and their sizes; by default those that diffusers loads.

    Files that are present are not downloaded again. Raises UsageError, ModelUnavailable or ModelError.
    """
    hub_id, _, revision = text.partition("@")
    disable_progress_bars()  # stderr is for Filmgate's lines
    with _hub_errors(text):
        info = HfApi().model_info(hub_id, revision=revision or None, files_metadata=True)
        sizes = (choose or _wanted_files)(info)
        licence = (info.card_data.license if info.card_data else None) or "not stated"
        if describe is not None:
            describe(
                f"{hub_id}: {len(sizes)} files, {sum(sizes.values()) / 2**30:.2f} GiB, licence {licence}, "
                f"revision {info.sha}"
            )
        progress = _Progress(sum(sizes.values()), report)
        fetch = partial(_fetch, hub_id, str(info.sha), progress)
        with ThreadPoolExecutor(_CONNECTIONS, "hub") as pool:
            records = list(pool.map(fetch, sizes))
    _compare(records, info)
    before = None
    with suppress(ModelError):  # a damaged pin is replaced
        before = find_hub_model(f"{hub_id}@{info.sha}")
    requested = before.requested if before is not None and revision in ("", info.sha) else revision
    model = HubModel(hub_id, str(info.sha), str(licence), Manifest(tuple(records)), requested)
    _write_pin(model)
    return model


def verify_hub_model(hub_id: str) -> Verification:
    """Reads every byte. Damaged files are deleted, so the next pull downloads them again."""
    model = find_hub_model(hub_id)
    if model is None:
        raise ModelError(f"{hub_id} is not pinned on this machine; run `filmgate models pull {hub_id}`")
    files = model.manifest.files
    damaged = tuple(file.path for file in files if hash_file(model.folder / file.path) != file.sha256)
    for path in damaged:
        _delete(model.folder / path)
    return Verification(hub_id, damaged, is_withdrawn=True)


def _delete(link: Path) -> None:
    """A file of the hub's cache is a link to its content, which is deleted too."""
    link.resolve().unlink(missing_ok=True)
    link.unlink(missing_ok=True)


def _wanted_files(info: "ModelInfo") -> dict[str, int]:
    """Bytes of each file that diffusers loads: configurations, and safetensors without a variant."""
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    if INDEX_FILE not in sizes:
        raise UsageError(
            f"{info.id} is not a diffusers pipeline: it has no {INDEX_FILE}; a LoRA adapter is named in "
            "models.adapters_file instead",
            option="MODEL",
        )
    return {path: size for path, size in sizes.items() if _is_wanted(path)}


def _is_wanted(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    if not folder:
        return name.endswith(".json")  # the index, and filmgate.json with the limits of the model
    return name.endswith(_SUFFIXES) and not is_variant(name)


def _fetch(hub_id: str, revision: str, progress: "_Progress", path: str) -> FileRecord:
    bar: Any = progress.bar  # a factory of bars instead of a class
    local = Path(hf_hub_download(hub_id, path, revision=revision, tqdm_class=bar))
    return FileRecord(path, local.stat().st_size, hash_file(local))


def _compare(records: list[FileRecord], info: "ModelInfo") -> None:
    """The hub states the SHA-256 of large files. A damaged file is deleted, so the next pull fetches it."""
    stated = {file.rfilename: file.lfs.sha256 for file in info.siblings or () if file.lfs is not None}
    damaged = [file.path for file in records if stated.get(file.path, file.sha256) != file.sha256]
    for path in damaged:
        _delete(_repository(info.id) / "snapshots" / str(info.sha) / path)
    if damaged:
        raise ModelError(f"{info.id}: {', '.join(damaged)} arrived damaged; run the same command again")


def _read_pin(hub_id: str) -> HubModel | None:
    """The model as it was pinned; None without a pin. Raises ModelError for a damaged one."""
    path = _repository(hub_id) / PIN_FILE
    try:
        pin = json.loads(path.read_text())
        manifest = parse_manifest(pin["manifest"], str(path))
        return HubModel(hub_id, pin["revision"], pin["licence"], manifest, pin.get("requested", ""))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as exc:
        raise ModelError(f"{path} is damaged; run `filmgate models pull {hub_id}`") from exc


def _write_pin(model: HubModel) -> None:
    pin = {"revision": model.revision, "requested": model.requested, "licence": model.licence}
    path = _repository(model.id) / PIN_FILE
    staged = path.with_name(f".{path.name}.{secrets.token_hex(8)}")  # other processes may pin the model too
    try:
        staged.write_text(json.dumps(pin | {"manifest": model.manifest.as_dict()}))
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _repository(hub_id: str) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}"


@contextmanager
def _hub_errors(text: str) -> Iterator[None]:
    try:
        yield
    except GatedRepoError as exc:
        raise ModelError(
            f"{text} requires its licence to be accepted on the hub; accept it there and set HF_TOKEN"
        ) from exc
    except (RepositoryNotFoundError, RevisionNotFoundError) as exc:
        raise UsageError(
            f"the hub has no model {text}; check the spelling, or set HF_TOKEN for a private model",
            option="MODEL",
        ) from exc
    except Exception as exc:  # the hub library raises errors of its HTTP client
        if outage := find_outage(exc, text):
            raise outage from exc
        if isinstance(exc, HfHubHTTPError | OSError):
            raise ModelError(f"{text} cannot be pulled: {str(exc).partition(chr(10))[0]}") from exc
        raise


class _Progress:
    """Sums the bytes of all files; `bar` is what the hub library creates per file."""

    def __init__(self, total_bytes: int, report: ReportProgress | None) -> None:
        self._total = total_bytes
        self._done = 0
        self._report = report
        self._lock = threading.Lock()

    def add(self, size: float) -> None:
        with self._lock:
            self._done += int(size)
            if self._report is not None:
                self._report(self._done, self._total)

    def bar(self, *_args: Any, initial: float = 0, **_options: Any) -> "_Bar":
        self.add(initial)
        return _Bar(self)


class _Bar:
    """The methods of a progress bar that the hub library calls."""

    def __init__(self, progress: _Progress) -> None:
        self._progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def update(self, size: float | None = 1) -> None:
        self._progress.add(size or 0)

    def close(self) -> None:
        pass

    def set_postfix_str(self, *_args: object, **_options: object) -> None:
        pass
