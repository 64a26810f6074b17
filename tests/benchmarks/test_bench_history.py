def test_the_report_compares_ends_of_jobs_with_and_without_the_history(run_benchmark):
    report = run_benchmark("history", "--jobs", 3)
    assert report["results"]["rows"] > 0
    assert report["ratios"]["with_to_without_history"] > 0
