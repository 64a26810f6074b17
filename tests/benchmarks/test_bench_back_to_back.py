"""The benchmark of the worker between two jobs, in small."""


def test_the_time_between_clips_is_compared_with_the_device_alone(run_benchmark):
    report = run_benchmark("back_to_back", "--jobs", 3, "--pace", 0.002, "--chunk-bytes", 4096)
    results = report["results"]
    assert results["device_alone"] > 13 * 0.002
    expected = results["seconds_between_clips"] / results["device_alone"]
    assert abs(report["ratios"]["between_to_alone"] - expected) < 0.01 * max(expected, 1)
