"""Which attention a denoiser uses: torch's own, or flash-attn-4 if it agrees and is faster."""

from types import SimpleNamespace

import pytest
import torch

from filmgate.pipeline.denoise import attention
from filmgate.pipeline.denoise.attention import choose_attention, flash_attention, torch_attention
from filmgate.pipeline.trials import CACHE_VARIABLE, FILE_NAME, Trial, choose, read_trials
from tests.zoo import build_pipeline

# torch emits this warning when its compiler is first imported.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

CPU, SHAPE = torch.device("cpu"), (1, 16, 2, 8)


@pytest.fixture
def package(monkeypatch, tmp_path):
    """Puts a function in the place of flash-attn-4 on Hopper; returns the queries and tiles of its calls."""
    tiles = []

    def install(run):
        def forward(query, key, value, out=None, **tile):
            tiles.append((query.shape[1], tile.get("tile_mn")))
            found = run(query, key, value)
            return (found if out is None else out.copy_(found)), None

        monkeypatch.setattr(attention, "_flash_function", lambda: forward)
        return tiles

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=4)
    )
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(attention, "machine_key", lambda *_: "a GPU")
    return install


def is_chosen(shape=SHAPE):
    return choose(attention._candidate(shape, torch.float32, CPU))


@pytest.mark.parametrize(("fast", "is_used"), [(1, True), (3, False)])
def test_flash_attention_is_used_where_it_wins_the_trial(package, monkeypatch, tmp_path, fast, is_used):
    package(torch_attention)
    monkeypatch.setattr(attention, "time_both", lambda *_: Trial(fast, 2))
    assert is_chosen() is is_used
    key = "attention, 2 heads of 8, torch.float32, a GPU"
    assert read_trials(tmp_path / FILE_NAME) == {key: Trial(fast, 2)}


def test_an_attention_that_differs_by_more_than_a_hundredth_is_not_used(package, caplog):
    package(lambda *given: torch_attention(*given) * 1.02)
    assert is_chosen() is False
    assert "not using flash-attn-4: the self-test failed" in caplog.text


def test_an_attention_that_fails_is_not_used(package, caplog):
    def fails(*_):
        raise RuntimeError("no kernel for this device")

    package(fails)
    assert is_chosen() is False
    assert "not using flash-attn-4: the self-test raised an error" in caplog.text


def test_heads_of_128_on_hopper_get_the_faster_tile(package):
    tiles = package(torch_attention)
    for size in (128, 64):
        flash_attention(*(torch.randn(1, 4, 2, size) for _ in range(3)))
    assert tiles == [(4, (192, 128)), (4, None)]


def test_the_last_queries_get_smaller_tiles_where_that_fills_the_gpu(package):
    """Five tiles of 192 on four multiprocessors would take two waves."""
    tiles = package(torch_attention)
    given = [torch.randn(1, 4 * 192 + 20, 1, 128) for _ in range(3)]
    torch.testing.assert_close(flash_attention(*given), torch_attention(*given))
    assert tiles == [(4 * 192, (192, 128)), (20, (128, 128))]


def test_both_ways_to_call_it_are_checked(package, caplog):
    tiles = package(
        lambda query, *others: torch_attention(query, *others) * (1 if query.shape[1] == 8 else 2)
    )
    assert is_chosen((1, 200, 1, 128)) is False
    assert [queries for queries, _ in tiles] == [200, 192, 8]
    assert "the self-test failed" in caplog.text


def test_compiled_code_calls_it_without_a_graph_break(package):
    package(torch_attention)
    query, key, value = (torch.randn(SHAPE) for _ in range(3))

    def block(query, key, value):
        return flash_attention(query * 2, key, value) + 1

    compiled = torch.compile(block, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(query, key, value), torch_attention(query * 2, key, value) + 1)


def test_without_a_gpu_or_the_package_attention_is_torchs():
    assert choose_attention(build_pipeline("wan2.1").transformer) is torch_attention
