"""How `--help` names commands, arguments and values. typer would print Python types, such as <list[str]>."""

from typing import Any

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

_WHOLE = 10_000  # characters; more than any sentence
# What the text of an option is, by its name or the end of its name.
_BY_NAME = {
    "account": "ID",
    "bucket": "BUCKET",
    "cluster": "NAME",
    "gpu": "GPU",
    "host": "ADDRESS",
    "instance": "INSTANCE",
    "instances": "INSTANCES",
    "key": "KEY",
    "lora": "LORA",
    "model": "MODEL",
    "name": "NAME",
    "overlap": "TIME",
    "pixel_format": "FORMAT",
    "prometheus": "URL",
    "quality": "QUALITY",
    "queue": "QUEUE",
    "region": "REGION",
    "regions": "REGIONS",
    "release": "NAME",
    "size": "WIDTHxHEIGHT",
    "staging": "BUCKET",
    "tenant": "TENANT",
    "tenants": "TENANT",
    "url": "URL",
    "user": "ARN",
    "vae": "VAE",
    "variant": "VARIANT",
}
# Paths are files, except these.
_FOLDERS = frozenset({"data", "folder", "keys", "source", "target"})
# A quota, or "none".
_QUOTAS = ("max_", "gpu_seconds_", "slo_")


def name_value(name: str, type_name: str) -> str:
    """What stands for the value of an option: its meaning, or the kind of value in capitals."""
    kind = type_name.lower().strip("<>").removeprefix("list[").removesuffix("]").removesuffix(" range")
    if "|" in kind:
        return kind
    if kind != "str":
        return {"int": "N", "float": "N", "path": "FOLDER" if name in _FOLDERS else "FILE"}[kind]
    if name.startswith(_QUOTAS):
        return "N"
    return _BY_NAME.get(name) or _BY_NAME.get(name.rpartition("_")[2]) or "TEXT"


class PlainOption(TyperOption):
    """An option whose help says what its value is, and in words which numbers it accepts."""

    def display_type(self, ctx: Any) -> str:
        return name_value(self.name, super().display_type(ctx))

    def _get_number_range_help_str(self) -> str | None:
        if self.min is None or self.max is None:
            return None if self.min is None else f"at least {self.min:g}"
        return f"{self.min:g} to {self.max:.7g}"


class PlainArgument(TyperArgument):
    """An argument in capitals, in brackets if it may be left out."""

    def display_type_rich(self, ctx: Any) -> str | None:  # noqa: ARG002
        return None

    def _rich_display_name(self) -> str:
        return self._plain_name

    def _usage_display_name(self) -> str:
        return self._plain_name if self.required else f"[{self._plain_name}]"

    @property
    def _plain_name(self) -> str:
        name = (self.metavar or self.name.upper()).strip("[].")
        return name if self.nargs == 1 else f"{name}..."


class PlainHelpGroup(TyperGroup):
    """Lists every command with its whole first sentence; typer would cut it at the width of the terminal."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for command in self.commands.values():
            # typer has no setting for the classes of parameters, and makes them before the command.
            for parameter in command.params:
                if isinstance(parameter, TyperOption):
                    parameter.__class__ = PlainOption
                elif isinstance(parameter, TyperArgument):
                    parameter.__class__ = PlainArgument

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(n, each.get_short_help_str(_WHOLE)) for n, each in found if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
