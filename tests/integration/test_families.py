"""Every model family from a folder on disk to a clip: text -> denoise -> decode -> MP4."""

from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
import torch

import filmgate
from filmgate.errors import Cancelled, ModelError, OutOfMemory, UsageError
from filmgate.jobs import Size, SourceKind, Stage
from filmgate.models.families import FAMILIES as KNOWN
from filmgate.models.limits import ModelLimits
from filmgate.pipeline.canary import MAX_DIFFERENCE, make_golden
from filmgate.pipeline.clip_writer import ClipOutputs
from filmgate.pipeline.control import Control
from filmgate.pipeline.denoise.denoise import denoise
from filmgate.pipeline.loading import loader
from filmgate.pipeline.loading.families import FAMILIES
from filmgate.pipeline.loading.loader import image_pipeline, load_model
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.text import TextCache, encode_text
from filmgate.pipeline.transfer.streams import open_streams
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
    size = model.limits.size.nearest(Size(32, 32))
    frames = FRAMES.get(name, 9)
    return make_clip_request(model, str(size), image, frames=frames, steps=steps, seed=seed)


def render(model, request, path, control=None, prompt="a red ball"):
    request = replace(request, prompt=prompt, negative_prompt="blurry")
    return Renderer(model, CPU).render(request, path, ClipOutputs(), control or Control())


def images_for(name, picture):
    """What the model can start from: only text (None), only an image, or both."""
    return [picture] if name in IMAGE_ONLY else [None, picture] if name in BOTH else [None]


@pytest.mark.parametrize("name", BUILDERS)
def test_a_clip_is_rendered_to_a_file(model, name, picture, tmp_path):
    for image in images_for(name, picture):
        request = make_request(model(name), name, image)
        reports = []
        report = render(model(name), request, tmp_path / "clip.mp4", Control(reports.append))
        assert_stages_in_order(reports, steps=2, frames=request.frames)
        with av.open(str(report.clip.path)) as video:
            frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        assert np.stack(frames).shape == (request.frames, request.height, request.width, 3)
        assert set(report.stage_seconds) == {Stage.TEXT, Stage.DENOISE, Stage.DECODE}


def test_the_pipeline_has_a_class_for_every_family():
    assert tuple(family.facts for family in FAMILIES) == KNOWN


@pytest.mark.parametrize("name", BUILDERS)
def test_every_family_passes_its_canary(model, name):
    """The clip has the frames and the size that were requested, with the shortest length above one frame."""
    golden = make_golden(model(name), Renderer(model(name), CPU))
    assert golden.tolerance <= MAX_DIFFERENCE


def test_lengths_that_cogvideox_would_decode_to_others_are_refused(model):
    frames = model("cogvideox").limits.frames
    assert [n for n in range(1, 50) if frames.nearest(n) == n] == [1, 9, 17, 25, 33, 41, 49]


def test_learned_positions_fix_the_size_and_positions_of_cogvideox_15_bound_it(model):
    with pytest.raises(UsageError, match="renders 64x64 only"):
        model("cogvideox-image").limits.size.check("cogvideox", Size(128, 128))
    assert model("cogvideox-1.5").limits.size.nearest(Size(4800, 600)) == Size(2400, 304)


def assert_stages_in_order(reports, steps, frames):
    stages = list(dict.fromkeys(p.stage for p in reports))
    assert stages == [Stage.TEXT, Stage.DENOISE, Stage.DECODE]
    assert [p.done for p in reports if p.stage is Stage.DENOISE] == list(range(steps + 1))
    decoded = [p.done for p in reports if p.stage is Stage.DECODE]
    assert decoded == sorted(decoded)
    assert decoded[-1] == frames


@pytest.mark.parametrize("name", BUILDERS)
def test_the_same_seed_gives_the_same_latents_and_another_seed_does_not(model, name, picture):
    image = picture if name in IMAGE_ONLY else None
    one, same, other = (
        latents_of(model(name), make_request(model(name), name, image, seed=seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def latents_of(model, request, prompt="a red ball", control=None):
    request = replace(request, prompt=prompt)
    text = encode_text(model, request, TextCache(max_bytes=0))
    streams = open_streams(model.placement.device)
    return denoise(model, text, request, control or Control(), streams).latents


@pytest.mark.parametrize("name", sorted(set(BUILDERS) - {"svd"}))
def test_the_prompt_changes_the_latents(model, name, picture):
    request = make_request(model(name), name, picture if name in IMAGE_ONLY else None)
    assert not torch.equal(
        latents_of(model(name), request, "a red ball"), latents_of(model(name), request, "the sea at night")
    )


def test_save_video_takes_the_latents_of_cogvideox_15_without_their_padding(model, tmp_path):
    pipe = model("cogvideox-1.5").pipe
    latents = pipe(
        "a red ball", num_frames=9, width=32, height=32, num_inference_steps=1, output_type="latent"
    )
    path = filmgate.save_video(pipe.vae, latents.frames[:, 1:], tmp_path / "clip.mp4")
    with av.open(str(path)) as video:
        assert len(list(video.decode(video=0))) == 9


@pytest.mark.parametrize("name", [*IMAGE_ONLY, *BOTH])
def test_the_image_changes_the_latents(model, name, picture):
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
def test_a_text_model_refuses_an_image(model, name, picture):
    with pytest.raises(UsageError, match="cannot start from an image") as caught:
        make_request(model(name), name, picture)
    assert caught.value.option == "input_reference"


@pytest.mark.parametrize("name", IMAGE_ONLY)
def test_an_image_model_requires_an_image(model, name):
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
    "cogvideox": (16, 8),
    "cogvideox-1.5": (16, 8),
    "cogvideox-image": (16, 8),
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
    "cogvideox-1.5": (1360, 768, 9, 16, 50),
    "cogvideox-image": (64, 64, 9, 8, 50),
    "hunyuanvideo": (1280, 720, 129, 24, 50),
    "hunyuanvideo-image": (1280, 720, 129, 24, 50),
    "svd": (1024, 576, 14, 7, 25),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_limits_come_from_the_model(model, name):
    limits = model(name).limits
    assert isinstance(limits, ModelLimits)
    assert (limits.size.multiple, limits.frames.step) == LIMITS[name]
    assert (SourceKind.IMAGE in limits.sources) == (name in IMAGE_ONLY or name in BOTH)
    assert limits.needs_image == (name in IMAGE_ONLY)


@pytest.mark.parametrize("name", BUILDERS)
def test_the_defaults_of_a_model_are_within_its_limits(model, name, picture):
    loaded = model(name)
    request = make_clip_request(loaded, image=picture if name in IMAGE_ONLY else None)
    defaults = (request.width, request.height, request.frames, request.fps, request.steps)
    assert defaults == DEFAULTS[name]


def test_a_model_may_have_its_own_defaults(model_folder, tmp_path):
    folder = linked(model_folder("wan2.1"), tmp_path / "wan")
    (folder / "filmgate.json").write_text('{"width": 64, "height": 32, "frames": 5, "steps": 3}')
    limits = load_model(str(folder), CPU).limits
    assert limits.size.default == Size(64, 32)
    assert (limits.frames.default, limits.steps.default, limits.fps.default) == (5, 3, 16)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        '{"colour": "red"}',
        "[1]",
        '{"width": 250}',
        '{"height": "64"}',
        '{"frames": 6}',
        '{"fps": "16"}',
        '{"steps": 0}',
        '{"steps": 2.5}',
        '{"guidance": -1}',
    ],
)
def test_unusable_own_defaults_are_a_model_error_that_names_the_file(model_folder, text, tmp_path):
    folder = linked(model_folder("wan2.1"), tmp_path / "wan")
    (folder / "filmgate.json").write_text(text)
    with pytest.raises(ModelError, match="filmgate.json is not usable"):
        load_model(str(folder), CPU)


def linked(folder: Path, target: Path) -> Path:
    """A folder of links to the model's files, so a test can change one of them."""
    target.mkdir()
    for part in folder.iterdir():
        (target / part.name).symlink_to(part)
    return target


def test_the_image_pipeline_shares_every_weight_and_changes_none(model_folder):
    loaded = load_model(str(model_folder("wan2.2-5b")), PipelineSettings(device="cpu", dtype="bfloat16"))
    before = {name: p.dtype for name, p in loaded.pipe.transformer.named_parameters()}
    assert set(before.values()) == {torch.bfloat16, torch.float32}  # diffusers keeps norms in float32
    pipe = image_pipeline(loaded)
    assert pipe.transformer is loaded.pipe.transformer
    assert pipe.config.expand_timesteps
    assert {name: p.dtype for name, p in pipe.transformer.named_parameters()} == before


@pytest.mark.parametrize("name", ["no-such-model", "a/b/c", ""])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(name):
    with pytest.raises(
        UsageError, match="use flipbook, miniature, a name of the catalog .*, a diffusers folder, or a hub id"
    ) as caught:
        load_model(name, CPU)
    assert caught.value.option == "--model"


def test_a_hub_id_that_cannot_be_fetched_is_a_model_error():
    with pytest.raises(ModelError, match="--model some-team/some-model cannot be loaded"):
        load_model("some-team/some-model", CPU)


def test_a_folder_without_an_index_is_not_a_pipeline(tmp_path):
    with pytest.raises(UsageError, match="has no model_index.json"):
        load_model(str(tmp_path), CPU)


@pytest.mark.parametrize("damage", ["empty index", "no weights", "truncated weights"])
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
        if damage == "truncated weights":
            (folder / "vae" / weights.name).write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(str(folder), CPU)


def test_an_unsupported_pipeline_is_an_error_that_lists_the_supported_ones(tmp_path):
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
    with pytest.raises(ModelError, match="Filmgate does not run DDPMPipeline; it runs CogVideoX"):
        load_model(str(tmp_path), CPU)


def test_an_unwritable_path_is_refused_before_denoising(model, tmp_path):
    reports = []
    with pytest.raises(UsageError) as caught:
        render(
            model("wan2.1"), make_request(model("wan2.1"), "wan2.1"), Path("/proc/x"), Control(reports.append)
        )
    assert caught.value.option == "--output"
    assert reports == []


def run_out(*_):
    raise torch.OutOfMemoryError


@pytest.mark.parametrize(
    ("component", "named"), [("transformer", "the denoiser"), ("text_encoder", "the text encoder")]
)
def test_a_component_that_does_not_fit_names_the_settings_to_change(model, component, named, tmp_path):
    hook = model("wan2.1").pipe.components[component].register_forward_pre_hook(run_out)
    try:
        with pytest.raises(
            OutOfMemory, match=f"{named} does not fit .* set pipeline.offload to model or layers"
        ):
            render(model("wan2.1"), make_request(model("wan2.1"), "wan2.1"), tmp_path / "clip.mp4")
    finally:
        hook.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_fit_names_the_setting_to_change(model_folder, monkeypatch):
    monkeypatch.setattr(loader, "place", run_out)
    with pytest.raises(
        OutOfMemory, match=r"wan2.1 does not fit into GPU memory; .* set pipeline.offload to auto"
    ):
        load_model(str(model_folder("wan2.1")), CPU)
