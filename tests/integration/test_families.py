"""Every family of pipelines, from a folder on disk to a file: text -> denoise -> decode -> MP4."""

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from filmgate.errors import Cancelled, ModelError, UsageError
from filmgate.jobs import Size, SourceKind
from filmgate.models.limits import ModelLimits
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control, Stage
from filmgate.pipeline.denoise.denoise import denoise
from filmgate.pipeline.loading.loader import image_pipeline, load_model
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text.encode import Prompt, encode_text
from filmgate.settings import PipelineSettings
from tests.clip_requests import make_clip_request
from tests.zoo import BUILDERS

pytestmark = pytest.mark.usefixtures("no_thread_left")
CPU = PipelineSettings(device="cpu", encoder="software")
IMAGE_ONLY = ("wan-image", "cogvideox-image", "hunyuanvideo-image", "svd")
BOTH = ("wan2.2-5b", "ltx", "ltx-0.9.5")
TEXT_ONLY = tuple(set(BUILDERS) - {*IMAGE_ONLY, *BOTH})
FRAMES = {"svd": 3, "ltx": 17, "ltx-0.9.5": 17}


def make_request(model, name, image=None, steps=2, seed=1):
    side = max(model.limits.size.multiple, 32)
    frames = FRAMES.get(name, 9)
    return make_clip_request(model, f"{side}x{side}", image, frames=frames, steps=steps, seed=seed)


def render(model, request, path, control=None, prompt="a red ball"):
    asked = Prompt(prompt, "blurry", request.guidance)
    return Renderer(model, CPU).render(asked, request, path, ClipOutputs(), control or Control())


def images_for(name, picture):
    """What each family can start from: nothing, a picture, or either."""
    return [picture] if name in IMAGE_ONLY else [None, picture] if name in BOTH else [None]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_clip_goes_from_text_to_file(model, name, picture, tmp_path):
    for image in images_for(name, picture):
        request = make_request(model(name), name, image)
        heard = []
        report = render(model(name), request, tmp_path / "clip.mp4", Control(heard.append))
        assert_finished_work_in_order(heard, steps=2, frames=request.frames)
        with av.open(str(report.clip.path)) as video:
            frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        assert np.stack(frames).shape == (request.frames, request.height, request.width, 3)
        assert set(report.stage_seconds) == {Stage.TEXT, Stage.DENOISE, Stage.DECODE}


def assert_finished_work_in_order(heard, steps, frames):
    stages = list(dict.fromkeys(p.stage for p in heard))
    assert stages == [Stage.TEXT, Stage.DENOISE, Stage.DECODE, Stage.FINISH]
    assert [p.done for p in heard if p.stage is Stage.DENOISE] == list(range(steps + 1))
    decoded = [p.done for p in heard if p.stage is Stage.DECODE]
    assert decoded == sorted(decoded)
    assert decoded[-1] == frames


@pytest.mark.parametrize("name", BUILDERS)
def test_the_same_seed_gives_the_same_latents_and_another_seed_others(model, name, picture):
    image = picture if name in IMAGE_ONLY else None
    one, same, other = (
        latents_of(model(name), make_request(model(name), name, image, seed=seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def latents_of(model, request, prompt="a red ball", control=None):
    text = encode_text(model, Prompt(prompt, "", request.guidance))
    return denoise(model, text, request, control or Control()).latents


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"svd"}))
def test_the_prompt_changes_the_latents(model, name, picture):
    request = make_request(model(name), name, picture if name in IMAGE_ONLY else None)
    assert not torch.equal(
        latents_of(model(name), request, "a red ball"), latents_of(model(name), request, "the sea at night")
    )


@pytest.mark.parametrize("name", [*IMAGE_ONLY, *BOTH])
def test_the_picture_changes_the_latents(model, name, picture):
    request = make_request(model(name), name, picture)
    darker = replace(request, image=request.image.point(lambda level: level // 3))
    assert not torch.equal(latents_of(model(name), request), latents_of(model(name), darker))


def test_the_same_seed_writes_the_same_file(model, tmp_path):
    request = make_request(model("wan2.1"), "wan2.1")
    one, other = (render(model("wan2.1"), request, tmp_path / f"{n}.mp4").clip.path for n in range(2))
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("name", BUILDERS)
def test_cancel_takes_effect_within_one_step(model, name, picture, tmp_path):
    request = make_request(model(name), name, picture if name in IMAGE_ONLY else None, steps=8)
    steps = []

    def cancel_after_two(progress):
        if progress.stage is Stage.DENOISE:
            steps.append(progress.done)
            if progress.done == 2:
                control.cancel()

    control = Control(cancel_after_two)
    with pytest.raises(Cancelled):
        render(model(name), request, tmp_path / "clip.mp4", control)
    assert steps == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]


@pytest.mark.parametrize("name", ["wan2.1", "svd"])
def test_a_cancelled_model_renders_the_next_clip(model, name, picture, tmp_path):
    request = make_request(model(name), name, picture if name in IMAGE_ONLY else None, steps=2)
    stopped = Control()
    stopped.cancel()
    with pytest.raises(Cancelled):
        render(model(name), request, tmp_path / "clip.mp4", stopped)
    assert render(model(name), request, tmp_path / "clip.mp4").clip.path.exists()


@pytest.mark.parametrize("name", sorted(TEXT_ONLY))
def test_a_text_model_refuses_a_picture(model, name, picture):
    with pytest.raises(UsageError, match="cannot start from an image") as caught:
        make_request(model(name), name, picture)
    assert caught.value.option == "input_reference"


@pytest.mark.parametrize("name", IMAGE_ONLY)
def test_an_image_model_asks_for_a_picture(model, name):
    with pytest.raises(UsageError, match="send an image") as caught:
        make_request(model(name), name)
    assert caught.value.option == "input_reference"


LIMITS = {
    "wan2.1": (16, 4),
    "wan2.2-5b": (32, 4),
    "wan2.2-two-experts": (16, 4),
    "wan-image": (16, 4),
    "ltx": (32, 8),
    "ltx-0.9.5": (32, 8),
    "cogvideox": (16, 4),
    "cogvideox-1.5": (16, 4),
    "cogvideox-image": (16, 4),
    "hunyuanvideo": (16, 4),
    "hunyuanvideo-image": (16, 4),
    "svd": (8, 1),
}
DEFAULTS = {
    "wan2.1": (832, 480, 81, 16, 50),
    "wan2.2-5b": (1280, 704, 121, 24, 50),
    "wan2.2-two-experts": (832, 480, 81, 16, 50),
    "wan-image": (832, 480, 81, 16, 50),
    "ltx": (704, 512, 161, 25, 50),
    "ltx-0.9.5": (704, 512, 161, 25, 50),
    "cogvideox": (64, 64, 9, 8, 50),
    "cogvideox-1.5": (64, 64, 9, 16, 50),
    "cogvideox-image": (64, 64, 49, 8, 50),
    "hunyuanvideo": (1280, 720, 129, 24, 50),
    "hunyuanvideo-image": (1280, 720, 129, 24, 50),
    "svd": (1024, 576, 25, 7, 25),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_sizes_and_lengths_come_from_the_model(model, name):
    limits = model(name).limits
    assert isinstance(limits, ModelLimits)
    assert (limits.size.multiple, limits.frames.step) == LIMITS[name]
    assert (SourceKind.IMAGE in limits.sources) == (name in IMAGE_ONLY or name in BOTH)
    assert limits.needs_image == (name in IMAGE_ONLY)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_models_own_defaults_are_sizes_it_can_make(model, name, picture):
    loaded = model(name)
    request = make_clip_request(loaded, image=picture if name in IMAGE_ONLY else None)
    made = (request.width, request.height, request.frames, request.fps, request.steps)
    assert made == DEFAULTS[name]


def test_a_model_may_bring_its_own_defaults(model_folder, tmp_path):
    folder = linked(model_folder("wan2.1"), tmp_path / "wan")
    (folder / "filmgate.json").write_text('{"width": 64, "height": 32, "frames": 5, "steps": 3}')
    limits = load_model(str(folder), CPU).limits
    assert limits.size.default == Size(64, 32)
    assert (limits.frames.default, limits.steps.default, limits.fps.default) == (5, 3, 16)


@pytest.mark.parametrize("text", ["{", '{"colour": "red"}', "[1]"])
def test_own_defaults_that_cannot_be_read_name_the_file(model_folder, text, tmp_path):
    folder = linked(model_folder("wan2.1"), tmp_path / "wan")
    (folder / "filmgate.json").write_text(text)
    with pytest.raises(ModelError, match="filmgate.json is not usable"):
        load_model(str(folder), CPU)


def linked(folder: Path, target: Path) -> Path:
    """A folder of links to a model's parts: cheap to change."""
    target.mkdir()
    for part in folder.iterdir():
        (target / part.name).symlink_to(part)
    return target


def test_the_image_twin_shares_every_weight_and_changes_none(model_folder):
    loaded = load_model(str(model_folder("wan2.2-5b")), PipelineSettings(device="cpu", dtype="bfloat16"))
    before = {name: p.dtype for name, p in loaded.pipe.transformer.named_parameters()}
    assert set(before.values()) == {torch.bfloat16, torch.float32}  # diffusers keeps norms in float32
    twin = image_pipeline(loaded)
    assert twin.transformer is loaded.pipe.transformer
    assert twin.config.expand_timesteps
    assert {name: p.dtype for name, p in twin.transformer.named_parameters()} == before


@pytest.mark.parametrize("name", ["no-such-model", "a/b/c", ""])
def test_an_unknown_name_says_what_names_there_are(name):
    with pytest.raises(
        UsageError, match="use flipbook, miniature, a diffusers folder, or a hub id"
    ) as caught:
        load_model(name, CPU)
    assert caught.value.option == "--model"


def test_a_hub_id_that_cannot_be_fetched_is_a_model_error():
    with pytest.raises(ModelError, match="--model nobody/nothing cannot be loaded"):
        load_model("nobody/nothing", CPU)


def test_a_folder_without_an_index_is_no_pipeline(tmp_path):
    with pytest.raises(UsageError, match="holds no model_index.json"):
        load_model(str(tmp_path), CPU)


@pytest.mark.parametrize("damage", ["empty index", "no weights", "cut weights"])
def test_a_broken_folder_is_a_model_error(model_folder, damage, tmp_path):
    folder = linked(model_folder("wan2.1"), tmp_path / "wan")
    if damage == "empty index":
        (folder / "model_index.json").unlink()
        (folder / "model_index.json").write_text("{")
    else:
        weights = next((folder / "vae").resolve().glob("*.safetensors"))
        (folder / "vae").unlink()
        (folder / "vae").mkdir()
        (folder / "vae" / "config.json").symlink_to(weights.parent / "config.json")
        if damage == "cut weights":
            (folder / "vae" / weights.name).write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(folder), CPU)


def test_a_pipeline_we_do_not_run_is_named(tmp_path):
    import diffusers

    pipe = diffusers.DDPMPipeline(
        diffusers.UNet2DModel(
            sample_size=8,
            block_out_channels=(32,),
            down_block_types=("DownBlock2D",),
            up_block_types=("UpBlock2D",),
        ),
        diffusers.DDPMScheduler(),
    )
    pipe.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="DDPMPipeline is not a pipeline Filmgate runs; known: CogVideoX"):
        load_model(str(tmp_path), CPU)


def test_a_path_that_cannot_be_written_costs_no_denoising(model, tmp_path):
    heard = []
    with pytest.raises(UsageError) as caught:
        render(
            model("wan2.1"), make_request(model("wan2.1"), "wan2.1"), Path("/proc/x"), Control(heard.append)
        )
    assert caught.value.option == "--output"
    assert heard == []


def test_a_denoiser_that_does_not_fit_says_what_to_set(model, tmp_path):
    from filmgate.errors import OutOfMemory

    def run_out(*_):
        raise torch.OutOfMemoryError

    hook = model("wan2.1").pipe.transformer.register_forward_pre_hook(run_out)
    try:
        with pytest.raises(OutOfMemory, match="set pipeline.offload to model or layers"):
            render(model("wan2.1"), make_request(model("wan2.1"), "wan2.1"), tmp_path / "clip.mp4")
    finally:
        hook.remove()
    assert list(tmp_path.iterdir()) == []
