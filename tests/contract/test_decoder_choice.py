"""Which decoder `open_decoder` returns: support, the timed trial, the self-test, and failures to build."""

import pytest
import torch
from diffusers import AutoencoderKLCogVideoX

from filmgate.errors import UsageError
from filmgate.pipeline import decode
from filmgate.pipeline.decode import is_fast_decoder, may_be_fast, open_decoder, unsupported_reason
from filmgate.pipeline.decode.fast import decoder as fast_decoder
from filmgate.pipeline.decode.fast import passes
from filmgate.pipeline.decode.fast.decoder import FastDecoder, forget_network
from filmgate.pipeline.render import Renderer
from filmgate.pipeline.trials import CACHE_VARIABLE, FILE_NAME, Trial, read_trials
from filmgate.settings import PipelineSettings
from filmgate.telemetry.logs import JsonFormatter
from tests.zoo_vaes import COGVIDEOX, build_vae


@pytest.fixture
def supported(monkeypatch, tmp_path):
    """A machine whose device may use the fast decoder; results of trials go to an empty folder.

    The self-test decodes fewer pixels, because it runs here on a CPU.
    """
    monkeypatch.setattr(decode, "may_be_fast", lambda *_: True)
    monkeypatch.setattr(decode, "SELF_TEST_SIZE", (3, 4))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))


@pytest.fixture
def measured(supported, monkeypatch):
    """The fast decoder is the faster one on this machine."""
    monkeypatch.setattr(decode, "run_trial", lambda *_: Trial(fast_seconds=1, exact_seconds=2))


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("part", ["WanNetwork", "run_trial"])
def test_the_exact_decoder_is_used_for_a_clip_if_there_is_not_enough_memory(part, monkeypatch, caplog):
    """For its weights, or for the timed trial. No result is kept: the next clip tries again."""
    vae = build_vae("wan2.1")
    with monkeypatch.context() as full:
        full.setattr(fast_decoder if part == "WanNetwork" else decode, part, run_out)
        assert not is_fast_decoder(open_decoder(vae))
    assert "not using the fast decoder: not enough GPU memory" in caplog.text
    assert is_fast_decoder(open_decoder(vae))


@pytest.mark.usefixtures("measured")
def test_the_exact_decoder_is_used_if_the_weights_of_an_offloaded_vae_do_not_fit_again(monkeypatch, caplog):
    vae = build_vae("wan2.1")
    assert is_fast_decoder(open_decoder(vae))
    forget_network(vae)
    monkeypatch.setattr(fast_decoder, "WanNetwork", run_out)
    assert not is_fast_decoder(open_decoder(vae))
    assert "not enough GPU memory for the weights" in caplog.text


def run_out(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.usefixtures("measured")
def test_the_exact_decoder_is_used_and_logged_once_if_kernels_cannot_be_built(monkeypatch, caplog):
    def fails(*_, **__):
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(passes, "combine_in_torch", fails)
    vae = build_vae("wan2.1")
    assert not is_fast_decoder(open_decoder(vae))
    assert not is_fast_decoder(open_decoder(vae))
    (record,) = caplog.records
    assert "not using the fast decoder: the self-test raised an error" in record.message
    assert str(record.cause) == "Failed to find C compiler"
    assert "C compiler" not in JsonFormatter().format(record)  # an exception's text is never logged


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("name", ["wan2.1", "wan2.2", "cogvideox"])
def test_a_fast_decoder_that_passes_its_self_test_is_used_and_not_tested_again(name, monkeypatch):
    chunks = FastDecoder.chunks

    def return_nan(self, latents, rung):
        return (frames * float("nan") for frames in chunks(self, latents, rung))

    vae = build_vae(name).to(torch.bfloat16)
    assert is_fast_decoder(open_decoder(vae))
    monkeypatch.setattr(FastDecoder, "chunks", return_nan)
    assert is_fast_decoder(open_decoder(vae))  # not tested again
    assert not is_fast_decoder(open_decoder(build_vae(name).to(torch.bfloat16)))


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("corrupt", [lambda frames: frames * 1.2, lambda frames: frames * float("nan")])
def test_a_fast_decoder_that_fails_its_self_test_is_not_used(corrupt, monkeypatch, caplog):
    healthy = passes.add_taps_in_torch
    monkeypatch.setattr(passes, "add_taps_in_torch", lambda *args: corrupt(healthy(*args)))
    assert not is_fast_decoder(open_decoder(build_vae("wan2.1")))
    (record,) = caplog.records
    assert "not using the fast decoder: the self-test failed" in record.message
    error = record.fields["relative_error"]
    assert error is None or error > 0.1  # None instead of NaN, which is not valid JSON


def test_without_a_gpu_the_error_says_why_the_fast_decoder_is_not_available():
    vae = build_vae("wan2.1")
    assert not is_fast_decoder(open_decoder(vae))
    assert unsupported_reason(vae) == "it needs a GPU"
    with pytest.raises(UsageError, match="the fast decoder is not available: it needs a GPU"):
        open_decoder(vae, choice="fast")
    assert unsupported_reason(build_vae("mochi")) == "it does not support AutoencoderKLMochi"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, None),
        (
            {"block_out_channels": (8, 8, 12, 12)},
            "the VAE's channels and norm groups must be powers of two, with at least 8 channels",
        ),
        (
            {"block_out_channels": (4, 4, 4, 4)},
            "the VAE's channels and norm groups must be powers of two, with at least 8 channels",
        ),
        ({"act_fn": "gelu"}, "the VAE's activation is gelu, not silu or swish"),
    ],
)
def test_an_unsupported_cogvideox_configuration_is_named(config, reason):
    vae = AutoencoderKLCogVideoX(**COGVIDEOX | config).to(torch.bfloat16)
    assert unsupported_reason(vae, torch.device("cuda")) == reason


def test_an_unsupported_cogvideox_layer_is_named():
    vae = build_vae("cogvideox").to(torch.bfloat16)
    vae.decoder.up_blocks[0].resnets[0].conv2.pad_mode = "replicate"
    assert "copies of the first frame" in (unsupported_reason(vae, torch.device("cuda")) or "")
    wide = AutoencoderKLCogVideoX(**COGVIDEOX | {"block_out_channels": (8, 8, 8, 16)}).to(torch.bfloat16)
    wide.decoder.up_blocks[1].resnets[0].use_conv_shortcut = True
    assert "a convolution over time" in (unsupported_reason(wide, torch.device("cuda")) or "")
    vae.num_latent_frames_batch_size = 4
    assert unsupported_reason(vae, torch.device("cuda")) == "the VAE decodes 4 latent frames per chunk, not 2"


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), False), ((8, 0), True), ((8, 9), True), ((9, 0), True), ((12, 0), True)],
)
def test_auto_tries_the_fast_decoder_from_compute_capability_8(capability, expected, monkeypatch):
    """A100, L40S and G7e too."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(decode, "unsupported_reason", lambda _: None)
    assert may_be_fast(build_vae("wan2.1"), torch.device("cuda")) is expected


@pytest.mark.usefixtures("supported")
@pytest.mark.parametrize(("fast", "is_used"), [(0.1, True), (0.3, False)])
def test_auto_uses_the_decoder_that_wins_the_trial_and_keeps_the_result(fast, is_used, monkeypatch, tmp_path):
    runs = []

    def run(decoder, _vae):
        runs.append(decoder)
        return Trial(fast_seconds=fast, exact_seconds=0.2)

    monkeypatch.setattr(decode, "run_trial", run)
    chosen = [is_fast_decoder(open_decoder(build_vae("wan2.1").to(torch.bfloat16))) for _ in range(2)]
    assert (chosen, len(runs)) == ([is_used] * 2, 1)
    other = build_vae("wan2.1")  # another dtype is another trial
    assert is_fast_decoder(open_decoder(other)) is is_used
    assert len(runs) == 2
    assert set(read_trials(tmp_path / FILE_NAME).values()) == {Trial(fast, 0.2)}
    assert is_fast_decoder(open_decoder(other, choice="exact")) is False


@pytest.mark.usefixtures("supported")
def test_a_trial_times_both_decoders_and_a_damaged_file_is_replaced(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(decode, "TRIAL_SIZE", (4, 4))
    (tmp_path / FILE_NAME).write_text("{not json")
    vae = build_vae("wan2.1").to(torch.bfloat16)
    is_fast = is_fast_decoder(open_decoder(vae))
    assert "timing again" in caplog.text
    (kept,) = read_trials(tmp_path / FILE_NAME).values()
    assert min(kept.fast_seconds, kept.exact_seconds) > 0
    assert kept.is_fast_faster is is_fast


def test_an_unavailable_fast_decoder_is_refused_before_denoising(model):
    with pytest.raises(UsageError, match="the fast decoder is not available: it needs a GPU") as caught:
        Renderer(model("wan2.1"), PipelineSettings(device="cpu", decoder="fast"))
    assert caught.value.option == "pipeline.decoder"


def test_an_offloaded_vae_is_judged_by_the_device_it_will_run_on():
    vae = build_vae("wan2.1").to(torch.bfloat16)
    assert unsupported_reason(vae, torch.device("cuda")) is None  # offloaded to the host until decoding
