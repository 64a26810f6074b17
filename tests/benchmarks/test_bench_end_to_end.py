"""The comparison of diffusers with `filmgate generate`: both ways write the same clip."""

import av

from benchmarks.bench_end_to_end import Plan, diffusers_way, generate_way, table

SMALL = Plan("miniature", frames=5, steps=1, width=64, height=64, rounds=1)


def test_both_ways_write_the_same_frames_and_report_their_stages(tmp_path):
    with diffusers_way(SMALL, tmp_path) as render:
        plain = render(0, tmp_path / "plain.mp4")
    with generate_way(SMALL, tmp_path) as render:
        ours = render(0, tmp_path / "ours.mp4")
    assert set(plain) == {"text", "denoise", "decode", "copy", "encode"}
    assert set(ours) == {"text", "denoise", "decode"}
    shapes = []
    for name in ("plain.mp4", "ours.mp4"):
        with av.open(str(tmp_path / name)) as clip:
            shapes.append([(frame.width, frame.height) for frame in clip.decode(video=0)])
    assert shapes == [[(64, 64)] * 5] * 2


def test_the_table_adds_up_what_filmgate_overlaps():
    stages = {"text": 0.5, "denoise": 2.0, "decode": 4.0, "copy": 1.0, "encode": 2.0}
    results = {"seconds": {"diffusers": 10.0}, "stages": {"diffusers": stages}}
    line = table(results, {"diffusers_to_diffusers": 1.0}).splitlines()[-1]
    assert line == "| diffusers | 10.00 | 1.00 | 0.50 | 2.00 | 7.00 | 0.50 |"
