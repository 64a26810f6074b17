"""What a new user gets wrong on the first day is answered with one line and a remedy, never a traceback.

The lines were read as by somebody who does not know the code; tests/unit/test_sentences.py keeps the words.
"""

import shlex
import shutil
import sys

import pytest

from filmgate.cli import main
from filmgate.database import DEFAULT_FILE, open_database
from filmgate.settings import Settings

WRONG = {
    "generate": 'PROMPT: say what the clip shows, as in filmgate generate "a red ball',
    'generate "a cat" --prompts cats.txt': "PROMPT: give either PROMPT or --prompts FILE, not both",
    'generate ""': "PROMPT: the prompt is empty; describe what the clip shows",
    "generate --prompts nosuch.txt": "--prompts: nosuch.txt cannot be read",
    "generate --prompts exists.jsonl": "--prompts: exists.jsonl has no prompts; write one prompt per line",
    'generate "a cat" --size 12': "--size: '12' is not WIDTHxHEIGHT, such as 1280x720",
    'generate "a cat" --size 9999x9999': "flipbook cannot render 9999x9999; the nearest size is 512x512",
    'generate "a cat" --seconds 1000': "the nearest length is 12 seconds",
    'generate "a cat" --frames 6': "flipbook renders 5, 9, 13 ... 193 frames; the nearest to 6 is 5",
    'generate "a cat" --step 4': "there is no option --step; did you mean --steps? see `filmgate generate",
    'generate "a cat" --fps 12': "--fps: fps must be 16, got 12",
    'generate "a cat" --steps 0': "--steps: steps must be between 1 and 100, got 0; the nearest is 1",
    'generate "a cat" -o clip.avi': "--output: clips are MP4 files; use clip.mp4 instead of clip.avi",
    'generate "a cat" -n 2 --thumbnail cat.jpg': "--thumbnail: stills are written for a single clip only",
    'generate "a red ball" --thumbnail exists.jsonl/x.jpg': "--thumbnail: cannot write to exists.jsonl: File",
    'generate "a red ball" --spritesheet x.bmp': "--spritesheet: x.bmp does not name an image; end it in",
    'generate "a cat" --image nosuch.png': "--image: nosuch.png cannot be read",
    'generate "a cat" --pixel-format rgb': "--pixel-format: h264 clips have no pixel format 'rgb'; use ",
    'generate "a cat" --model gpt-5': "--model: there is no model 'gpt-5'; use flipbook, miniature,",
    'generate "a cat" --model ./nosuch': "--model: the folder ./nosuch does not exist",
    'generate "a cat" --model .': "--model: . has no model_index.json, so it is not a diffusers pipeline",
    "serve --model gpt-5": "--model: there is no model 'gpt-5'",
    "serve --model a=flipbook --model a=miniature": "--model: two models have the name a; name one of them",
    "serve --model flipbook --no-worker": "--model: the models are loaded by the worker; remove --no-worker",
    "serve --host 192.0.2.1 --no-worker": "--host: cannot listen on 192.0.2.1:0: Cannot assign requested",
    "serve --port 99999": "api.port: must be at most 65535",
    "worker --model gpt-5 --data .": "--model: there is no model 'gpt-5'",
    "worker --managed --data .": "no managed provider is configured; set provider.kind, as in",
    "jobs list": "`filmgate serve` creates it in its data folder",
    "models pull flipbook": "MODEL: flipbook is on this machine already; use it with --model flipbook",
    "models pull s3://a": "MODEL: expected s3://BUCKET/models/NAME/vN/",
    "models push . s3://a": "URL: expected s3://BUCKET/models/NAME/vN/",
    "models evict flipbook": "MODEL: 'flipbook' is not a model that can be pulled; give a name",
    "models evict": "MODEL: give either models or --to BYTES",
    "worker --tenant '' --data .": "--tenant: '' is not the name of a tenant: a-z, 0-9 and -, at most",
    "worker --tenant acme,globex --data .": "--tenant: 'acme,globex' is not the name of a tenant",
    "tenant add Acme! --data .": "NAME: a tenant name has a-z, 0-9 and -",
    "tenant add acme --scopes all --data .": "--scopes: there is no scope 'all'; choose from generate, read",
    "tenant add acme --weight inf --data .": "--weight: must be at most 1000000; see `filmgate",
    "tenant show nobody --data .": "no tenant is named nobody; run `filmgate tenant list`",
    "tenant set nobody --data .": "NAME: set at least one option; see `filmgate tenant set --help`",
    "tenant rotate nobody --overlap soon --data .": "'soon' is not a duration such as 30m, 24h or 7d",
    "tenant delete nobody --data .": "permanently destroys all data of tenant nobody; pass --yes",
    "keys rotate nobody --data .": "tenant nobody has no key yet; its first job creates one",
    "keys rotate ../x --data .": "NAME: '../x' is not the name of a tenant: a-z, 0-9 and -, at most",
    "keys rewrap X --data .": "NAME: 'X' is not the name of a tenant: a-z, 0-9 and -, at most 63",
    "keys rewrap nobody --data .": "tenant nobody has no key yet; its first job creates one",
    "route video_x --data .": "JOB: 'video_x' is not the id of a video, video_ and 32 hexadecimal digits; ",
    f"route video_{'0' * 32} --data .": f"JOB: tenant local has no job video_{'0' * 32}; see --tenant",
    "audit export -o exists.jsonl --data .": (
        "cannot be created: File exists; an export does not overwrite a file"
    ),
    "audit verify --tenant nobody --data .": "--tenant: the audit log has no records of tenant nobody",
    "audit show --clip exists.jsonl --data .": "the clip was changed, or it is not of this installation",
    "audit verify --file nosuch": "--file: nosuch cannot be read",
    "audit verify --file exists.jsonl --tenant acme": "--tenant: an export is verified as a whole",
    "audit verify --public-key exists.jsonl": "--public-key: the database is verified with its own key; give",
    "backup new --data elsewhere": "elsewhere has no database filmgate.db; use --data",
    "tenant forget acme --yes --data elsewhere": "elsewhere has no database filmgate.db; use --data",
    "tenant delete acme --yes --data elsewhere": "elsewhere has no database filmgate.db; use --data",
    "restore nosuch --data .": "SOURCE: nosuch is not a backup: manifest.json is missing",
    "plan video --model gpt-5": "--model: 'gpt-5' is not in the catalog; known: wan2.1-t2v-1.3b",
    "plan fit --gpu nosuch": "--gpu: 'nosuch' is not in the catalog; known: T4",
    "bench decode --frames 0": "--frames: must be at least 1; see `filmgate bench decode --help`",
    "bench decode --frames x": "--frames: must be a whole number; see `filmgate bench decode --help`",
    "bench service --output /proc/such.json": "--output: /proc/such.json cannot be written; give a file in",
    "bench decode --output no/such.json": "--output: no/such.json cannot be written; give a file in",
    "bench service --model gpt-5": "--model: there is no model 'gpt-5'",
    "bench service --clip model=wan": "--clip: model=wan is not served; add --model wan",
    "bench service --clip catalog=nosuch": "--clip: 'nosuch' is not in the catalog; similar",
    "bench service --url http://x --key-file exists.jsonl --tenants 2": "--tenants: with --url, give",
    "models reset-canary '' --data .": "VERSION: give the first digits of a version",
    "models reset-canary nosuch --data .": "VERSION: no golden clip is of a version that starts",
    "bench service --url http://x --key-file exists.jsonl": "exists.jsonl cannot be read: it contains no key",
    "bench service --url http://x --key-file nosuch": "--key-file: nosuch cannot be read",
    "slo": "--data: there is no data folder",
    "slo --data elsewhere": "elsewhere has no database filmgate.db; use --data, set FILMGATE_DATA, or run",
    "slo rulse": "there is no command rulse; did you mean rules? see `filmgate slo --help`",
    "slo rules --gpu-metrics nosuch": "--gpu-metrics: 'nosuch' is not one of filmgate, dcgm",
    "slo dashboards -o exists.jsonl": "--output: exists.jsonl cannot be written: File exists; choose another",
    "aws policy": "--account is missing; see `filmgate aws policy --help`",
    "aws policy --account 12": "--account: '12' is not an AWS account id of 12 digits",
    "aws policy --account 123456789012": "--region: no region is given; add one, such as --region eu-",
    "aws policy --account 123456789012 --region eu-central-1": "--bucket: no bucket is given; add --bucket",
    "aws policy --account 1 --role nosuch": "--role: 'nosuch' is not one of 'api', 'worker',",
    "aws template --account 123456789012 --cluster c --region eu-central-1 --bucket films/clips "
    "--dedicated-tenant A!": "--dedicated-tenant: 'A!' is not the name of a tenant",
    "deploy values --plan nosuch --model-name x": "--plan: nosuch cannot be read: No such file or directory; "
    "write it with `filmgate plan video ... --json > plan.json`",
    "deploy values --plan exists.jsonl --model-name x": "--plan: exists.jsonl is not JSON; write it with",
    "deploy replay --min-replicas 9 --max-replicas 2": "9 is more than --max-replicas 2; lower one or",
    "deploy replay --svg no/such.svg": "--svg: no/such.svg cannot be written; give a file in a folder that",
    "deploy replay --office-hours 20-6:2": "--office-hours: expected hours of one day such as 6.5-20",
    "deploy replay --office-hours 25-99:2": "--office-hours: expected hours of one day such as 6.5-20",
    "deploy replay --office-hours 6-20:-5": "and at least one replica, got '6-20:-5'",
    "deploy migrate --data nosuch": "--data: there is no data folder",
    "audit show --data elsewhere": "elsewhere has no database filmgate.db; use --data",
    "audit verify --file exists.jsonl": "exists.jsonl is not a file of `filmgate audit export`",
    "audit export": "--output / -o is missing; see `filmgate audit export --help`",
    "config extra": "unexpected argument: extra; see `filmgate config --help`",
    "doctor --tenant A!": "--tenant: 'A!' is not the name of a tenant",
    "doctor --nosuch": "there is no option --nosuch; see `filmgate doctor --help`",
    "tenant add": "NAME is missing; see `filmgate tenant add --help`",
    "nosuch": "there is no command nosuch; see `filmgate --help`",
}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """The file of an empty database."""
    folder = tmp_path_factory.mktemp("database")
    open_database(Settings().queue, folder).close()
    return folder / DEFAULT_FILE


@pytest.fixture
def folder(tmp_path, monkeypatch, database):
    monkeypatch.chdir(tmp_path)
    shutil.copy(database, tmp_path)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("FILMGATE_API__PORT", "0")
    (tmp_path / "exists.jsonl").touch()
    return tmp_path


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_answered_with_one_line_and_a_remedy(line, folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["filmgate", *shlex.split(line)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (1, 2)
    *notes, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert WRONG[line] in error
    assert all(note.startswith(("data folder: ", "database: ", "server: ")) for note in notes)
    assert list((folder / "elsewhere").iterdir()) == []


def test_a_worker_serves_the_default_model_of_the_settings(folder, monkeypatch, capsys):
    monkeypatch.setenv("FILMGATE_ADMISSION__DEFAULT_MODEL", "nosuch")
    monkeypatch.setattr(sys, "argv", ["filmgate", "worker", "--data", "."])
    with pytest.raises(SystemExit):
        main()
    assert "there is no model 'nosuch'" in capsys.readouterr().err


def test_what_reads_a_database_creates_none(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["filmgate", "audit", "show", "--data", "."])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, "the audit log has no records" in capsys.readouterr().err) == (0, True)
    monkeypatch.setattr(sys, "argv", ["filmgate", "tenant", "list", "--data", "elsewhere"])
    with pytest.raises(SystemExit):
        main()
    assert list((folder / "elsewhere").iterdir()) == []


def test_a_load_test_adds_no_tenants_to_another_database_and_says_so_before_it_measures(
    folder, monkeypatch, capsys
):
    monkeypatch.setenv("FILMGATE_QUEUE__URL", f"sqlite:///{folder / DEFAULT_FILE}")
    monkeypatch.setattr(sys, "argv", ["filmgate", "bench", "service", "--tenants", "2"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: --tenants: queue.url is set, and the test adds no")
