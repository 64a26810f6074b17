"""The comparison of diffusers with `filmgate generate`: both ways write the same clip."""

import av

from benchmarks.bench_end_to_end import Plan, open_diffusers, open_generate

SMALL = Plan("miniature", frames=5, steps=1, width=64, height=64, rounds=1)


def test_both_ways_write_the_same_frames_and_generate_reports_its_stages(tmp_path):
    assert open_diffusers(SMALL)(tmp_path / "plain.mp4") == {}
    stages = open_generate(SMALL)(tmp_path / "ours.mp4")
    assert set(stages) == {"text", "denoise", "decode"}
    shapes = []
    for name in ("plain.mp4", "ours.mp4"):
        with av.open(str(tmp_path / name)) as clip:
            shapes.append([(frame.width, frame.height) for frame in clip.decode(video=0)])
    assert shapes == [[(64, 64)] * 5] * 2
