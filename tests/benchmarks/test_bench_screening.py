def test_the_report_has_the_figures_of_the_tuned_and_of_the_held_out_prompts(run_benchmark):
    report = run_benchmark("screening")
    results, ratios = report["results"], report["ratios"]
    assert (results["obfuscated"] >= 300, report["settings"]["phrases"] >= 20) == (True, True)
    assert (results["passed"], results["ordinary"], results["held_out"]) == (0, 2000, 1000)
    assert ratios["alarms"] < 0.005
    # Not a limit to tune for: only a rule that rejects ordinary words exceeds it.
    assert ratios["held_out_alarms"] < 0.02
