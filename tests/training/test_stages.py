"""Every training stage at toy size, in order: stop, resume, export, and run with stock diffusers."""

import json

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline, WanPipeline
from training.flipbook import archive
from training.flipbook.build_pool import PoolPlan, build_pool
from training.flipbook.distill import DistillTrainer
from training.flipbook.export import assemble, check_folder, export
from training.flipbook.make import Stage, latest_result
from training.flipbook.networks import TINY, Sizes, build_text_encoder, build_transformer, build_vae
from training.flipbook.renderer import Format
from training.flipbook.restore import restore
from training.flipbook.tokenizer import build_tokenizer
from training.flipbook.train_transformer import FlowPlan, FlowTrainer
from training.flipbook.train_vae import VaePlan, VaeTrainer, finish_vae, load_vae
from training.flipbook.training_run import TrainingRun

TOY = Format(64, 64, 9)
VAE_PLAN = VaePlan(32, 2, 1, crop_from=(TOY,), whole=TOY, is_compiled=False)
FLOW_PLAN = FlowPlan(batch=4, warmup_steps=2, is_compiled=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A training run in which every stage has run for a moment."""
    torch.set_num_threads(1)
    run = TrainingRun.open(tmp_path_factory.mktemp("flipbook"))
    vae = VaeTrainer(run, TINY, VAE_PLAN)
    vae.train(1.0, until=0.9)
    vae.train(0.5)
    finish_vae(run, vae, clips=8)
    build_pool(run, PoolPlan(clips=8, batch=4, shares=((TOY, 1.0),)), 60)
    FlowTrainer(run, TINY, FLOW_PLAN).train(1.0, until=0.5)
    DistillTrainer(run, TINY, FLOW_PLAN).train(0.5)
    return run


@pytest.fixture(scope="module")
def model(run):
    folder = run.folder / "model"
    export(assemble(run, TINY, DistillTrainer.checkpoint), folder)
    return folder


def test_a_stopped_stage_resumes_where_it_stopped(run):
    trainer = FlowTrainer(run, TINY, FLOW_PLAN)
    trainer.resume()
    saved = run.require(FlowTrainer.checkpoint)
    assert trainer.step == saved["step"] > 0
    assert trainer.progress == 0.5
    for name, weight in trainer.denoiser.transformer.state_dict().items():
        assert torch.equal(weight, saved["denoiser"]["transformer"][name])
    momenta = [state for player in trainer.optimizer.optimizers for state in player.state.values()]
    assert len(momenta) == len(trainer.denoiser.parameters())


def test_the_vae_resumes_where_it_stopped(run):
    trainer = VaeTrainer(run, TINY, VAE_PLAN)
    trainer.resume()
    assert trainer.step > 0
    assert trainer.progress == 1.0


def test_the_saved_vae_is_the_trained_one(run):
    trainer = VaeTrainer(run, TINY, VAE_PLAN)
    trainer.resume()
    saved = load_vae(run).state_dict()
    for name, weight in trainer.vae.state_dict().items():
        assert torch.equal(weight, saved[name]), name


def test_a_loss_that_is_not_finite_ends_the_stage(run):
    with pytest.raises(SystemExit, match="diverged"):
        run.log_loss("transformer", float("nan"), step=3)


def test_latents_are_normalised_by_the_saved_statistics(run):
    config = json.loads((run.folder / "vae" / "config.json").read_text())
    assert len(config["latents_std"]) == TINY.latent_channels
    assert min(config["latents_std"]) > 0
    tokens = run.require("pool")[0]["tokens"].float()
    assert tokens.abs().mean() < 3


def test_the_exported_folder_is_a_stock_pipeline(model):
    check_folder(model)
    pipeline = DiffusionPipeline.from_pretrained(model, local_files_only=True)
    assert isinstance(pipeline, WanPipeline)
    assert {part.dtype for part in (pipeline.vae, pipeline.transformer, pipeline.text_encoder)} == {
        torch.float32
    }
    assert not any("_name_or_path" in path.read_text() for path in model.rglob("*.json"))


def test_the_same_seed_gives_the_same_clip(model):
    pipeline = DiffusionPipeline.from_pretrained(model, local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    clips = [
        pipeline(
            "a red ball", width=64, height=64, num_frames=5, num_inference_steps=2, guidance_scale=1.0,
            generator=torch.Generator().manual_seed(3),
        ).frames
        for _ in range(2)
    ]  # fmt: skip
    assert np.array_equal(*clips)


def test_a_new_machine_resumes_from_the_exported_folder(model, run, tmp_path):
    fresh = TrainingRun.open(tmp_path)
    restore(model, fresh, progress=0.6)
    (tmp_path / "pool.pt").symlink_to(run.folder / "pool.pt")
    trainer = FlowTrainer(fresh, TINY, FLOW_PLAN)
    trainer.resume()
    assert trainer.progress == 0.6
    assert torch.isfinite(trainer.train_step())
    assert (tmp_path / "vae" / "config.json").exists()


def test_an_unpacked_archive_equals_the_packed_folder(model, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "PART_BYTES", 100_000)
    parts = archive.pack([model], tmp_path, "model")
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) <= 100_000
    archive.unpack(tmp_path, "model", tmp_path / "unpacked")
    for path in model.rglob("*.*"):
        assert (tmp_path / "unpacked" / "model" / path.relative_to(model)).read_bytes() == path.read_bytes()


def test_the_latest_result_is_evaluated_and_packed(tmp_path):
    with pytest.raises(SystemExit, match="no result in"):
        latest_result(tmp_path)
    for name in ("vae", "draft", "model", "finetuned"):
        (tmp_path / name).mkdir()
        assert latest_result(tmp_path) == tmp_path / name
        assert str(tmp_path / name) in Stage.parse("evaluate").command(tmp_path, tmp_path, [])


def test_the_shipped_networks_fit_into_40_megabytes():
    sizes = Sizes()
    models = build_vae(sizes), build_transformer(sizes), build_text_encoder(sizes, len(build_tokenizer()))
    assert 2 * sum(model.num_parameters() for model in models) < 39.5e6


def test_a_stage_is_translated_to_its_command(tmp_path):
    command = Stage.parse("transformer:400@0.7").command(tmp_path, tmp_path, ["--no-compile"])
    assert command[2:] == [
        "training.flipbook.train_transformer", "--work", str(tmp_path), "--seconds", "400", "--until", "0.7",
        "--no-compile",
    ]  # fmt: skip
    command = Stage.parse("finetune:480").command(tmp_path, tmp_path / "out", [])
    assert command[2:] == [
        "training.flipbook.finetune_decoder", "--work", str(tmp_path), "--out", str(tmp_path / "out"),
        "--seconds", "480",
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="unknown stage"):
        Stage.parse("paint:3")
