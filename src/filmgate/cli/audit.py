"""`filmgate audit`: who made what from what, and whether the log is intact."""

import json
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from filmgate.cli.data_folder import Data, opened_database, settings_with
from filmgate.cli.options import AsJson, read_tenant, read_video
from filmgate.errors import UsageError
from filmgate.jobs import JobId

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, TextIO

    from filmgate.audit.log import AuditLog, Query
    from filmgate.audit.verify import Verification
    from filmgate.jobs import TenantId

audit = typer.Typer(help="Show, export and verify the audit log.", no_args_is_help=True)

TenantName = Annotated[str | None, typer.Option("--tenant", help="Only this tenant.", metavar="NAME")]


@audit.command("show")
def show_audit(
    tenant: TenantName = None,
    video: Annotated[str | None, typer.Option(help="Only this video.", metavar="ID")] = None,
    clip: Annotated[Path | None, typer.Option(help="Only the video of this clip file.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Number of records, the newest.")] = 50,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Print audit records, oldest first. Use --clip to find the video that a clip file belongs to."""
    from filmgate.audit.log import AuditLog, Query

    query = Query(_tenant_id(tenant), None if video is None else read_video(video, "--video"))
    with opened_database(settings_with(data)) as database:
        log = AuditLog(database)
        records = log.newest(_find_video(log, query, clip) if clip else query, limit=limit)
    if is_json:
        typer.echo(json.dumps({"records": [record.to_shown() for record in records]}))
        return
    for record in records:
        typer.echo(_to_line(record.to_shown()))
    if not records:
        wanted = " that match" if clip or query != Query() else ""
        typer.echo(f"the audit log has no records{wanted}", err=True)


@audit.command("export")
def export_audit(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    tenant: TenantName = None,
    data: Data = None,
) -> None:
    """Write records as JSON lines, which `verify --file` checks anywhere."""
    from filmgate.audit.export import to_lines
    from filmgate.audit.installation import open_installation_signer
    from filmgate.audit.log import AuditLog, Query

    settings, tenant_id = settings_with(data), _tenant_id(tenant)
    with opened_database(settings) as database:
        signer, log = open_installation_signer(settings), AuditLog(database)
        heads = log.heads(tenant_id)
        if tenant and not heads and not log.page(Query(tenant_id), limit=1):
            raise _unknown(tenant)
        records = log.records_until(heads, tenant_id)
        lines = to_lines(records, heads, signer.public_key if signer is not None else None)
        with _new_file(output) as file:
            file.writelines(line + "\n" for line in lines)
    typer.echo(str(output))
    if signer is not None:
        _warn_of_unsigned([head.tenant_id for head in heads if not head.signature])


def _warn_of_unsigned(tenants: "Sequence[TenantId]") -> None:
    if tenants:
        typer.echo(
            f"not signed yet: {len(tenants)} tenants, such as {tenants[0]}. `verify --public-key` rejects "
            "them: export again after the next checkpoint (audit.checkpoint_seconds)",
            err=True,
        )


def _tenant_id(tenant: str | None) -> "TenantId | None":
    """None for all tenants. A name that is empty is an error: it never stands for all of them."""
    return None if tenant is None else read_tenant(tenant)


def _unknown(tenant: str) -> UsageError:
    return UsageError(f"the audit log has no records of tenant {tenant}", option="--tenant")


@contextmanager
def _new_file(path: Path) -> "Iterator[TextIO]":
    """A file that does not exist yet. It is deleted after an error, so that half an export does not stay."""
    try:
        file = path.open("x", encoding="utf-8")
    except OSError as exc:
        remedy = "an export does not overwrite a file" if path.exists() else "choose another place"
        raise UsageError(f"{path} cannot be created: {exc.strerror}; {remedy}", option="--output") from exc
    try:
        with file:
            yield file
    except BaseException:
        path.unlink()
        raise


@audit.command("verify")
def verify_audit(
    tenant: TenantName = None,
    file: Annotated[Path | None, typer.Option(help="Verify an export instead of the database.")] = None,
    public_key: Annotated[
        Path | None,
        typer.Option(help="With --file: PEM file of the key you trust, not the one in the export."),
    ] = None,
    data: Data = None,
    is_json: AsJson = False,
) -> None:
    """Check every record, signed head and anchor. List changed records, and exit with 1 if there are any."""
    from filmgate.audit.installation import verify_installation

    if file is not None and tenant is not None:
        raise UsageError("an export is verified as a whole; export one tenant instead", option="--tenant")
    if file is None and public_key is not None:
        raise UsageError("the database is verified with its own key; give --file too", option="--public-key")
    if file is not None:
        result = _verify_file(file, public_key)
    else:
        settings, tenant_id = settings_with(data), _tenant_id(tenant)
        with opened_database(settings) as database:
            result = verify_installation(database, settings, tenant_id)
        if tenant and not result.tenants and result.is_intact:
            raise _unknown(tenant)
    _print_result(result, is_json=is_json)
    if not result.is_intact:
        raise typer.Exit(1)


def _verify_file(file: Path, public_key: Path | None) -> "Verification":
    from filmgate.audit.export import read_export
    from filmgate.audit.verify import verify

    header, records = read_export(file)
    trusted = _read_key(public_key) if public_key is not None else header.public_key
    # A key in the export proves nothing: whoever removes the signatures can also remove the key.
    return verify(records, header.heads, public_key=trusted, must_be_signed=public_key is not None)


def _read_key(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as exc:
        message = f"{path} cannot be read; give the PEM file of the public key"
        raise UsageError(message, option="--public-key") from exc


def _print_result(result: "Verification", *, is_json: bool) -> None:
    if is_json:
        shape = {"is_intact": result.is_intact, "faults": [str(fault) for fault in result.faults]}
        names = ("has_checked_signatures", "records", "tenants", "unsigned", "anchored")
        typer.echo(json.dumps(shape | {name: getattr(result, name) for name in names}))
        return
    for fault in result.faults:
        typer.echo(f"CHANGED  {_escape(str(fault))}")
    verdict = "intact" if result.is_intact else f"{len(result.faults)} faults"
    signed = f"{result.unsigned} not signed yet"
    if not result.has_checked_signatures:
        signed = f"signatures not checked, because there is no public key; {result.unsigned} not signed"
    typer.echo(
        f"{result.records} records of {result.tenants} tenants: {verdict}; {signed}; "
        f"{result.anchored} anchored heads compared"
    )


def _find_video(log: "AuditLog", query: "Query", clip: Path) -> "Query":
    from filmgate.audit.log import Query
    from filmgate.models.weights.manifest import hash_file

    try:
        digest = hash_file(clip)
    except OSError as exc:
        raise UsageError(f"{clip} cannot be read: {exc.strerror}", option="--clip") from exc
    found = log.newest(replace(query, clip_sha256=digest), limit=1)
    if not found or found[0].job_id is None:
        wanted = " of this tenant or video" if query != Query() else ""
        raise UsageError(
            f"no record{wanted} has the digest of {clip}, {digest}: the clip was changed, or it is not of "
            "this installation",
            option="--clip",
        )
    return Query(found[0].tenant_id, JobId(found[0].job_id))


def _to_line(shown: "Mapping[str, Any]") -> str:
    at, details = shown["at"], shown["details"]
    time = "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(details, str):
        text = f"details={json.dumps(details)}"
    else:
        text = " ".join(f"{name}={_to_text(value)}" for name, value in details.items())
    place = f"{shown['tenant']:<8} {shown['number']:>6}"
    return _escape(f"{place}  {time:<19}  {shown['action']:<14}  {shown['video'] or '-'}  {text}")


def _escape(line: str) -> str:
    """One line of text: a changed record may not look like other records, or act on the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in line)


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
