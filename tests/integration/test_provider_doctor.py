"""`filmgate doctor` on the managed provider: each part with what is missing and the remedy."""

from filmgate.providers.doctor import examine_provider
from filmgate.settings import ProviderSettings
from filmgate.telemetry.findings import Verdict
from tests.managed_site import bedrock_settings
from tests.second_filmgate import endpoint_settings
from tests.service import running, settings_for


def verdicts(settings):
    return {finding.subject: finding for finding in examine_provider(settings)}


def test_no_provider_is_fine():
    assert verdicts(ProviderSettings())["fallback"].verdict is Verdict.OK


def test_an_endpoint_is_asked_for_its_models_with_our_key(tmp_path):
    with running(settings_for(tmp_path)) as service:
        good = verdicts(endpoint_settings(service, usd_per_second=0.25))["fallback endpoint"]
        bad = verdicts(endpoint_settings(service, api_key="wrong"))["fallback endpoint"]
    assert good.verdict is Verdict.OK
    assert "flipbook" in good.message
    assert "0.25 USD a second" in good.message
    assert (bad.verdict, "HTTP 401" in bad.message) == (Verdict.FAIL, True)
    assert "provider.key_file" in bad.remedy


def test_an_endpoint_that_is_down_is_a_warning():
    settings = ProviderSettings(provider="http", url="http://127.0.0.1:9/v1", timeout_seconds=1)
    assert verdicts(settings)["fallback endpoint"].verdict is Verdict.WARN


def test_a_bad_setting_is_a_failure_that_names_it():
    found = verdicts(ProviderSettings(provider="bedrock", region="us-west-2"))["fallback"]
    assert (found.verdict, "provider.bucket" in found.remedy) == (Verdict.FAIL, True)


def test_a_sound_bedrock_has_three_good_lines(bedrock, moto, clip_bucket):
    found = verdicts(bedrock_settings(bedrock, moto, clip_bucket))
    assert {subject: finding.verdict for subject, finding in found.items()} == {
        "fallback model": Verdict.OK,
        "fallback jobs": Verdict.OK,
        "fallback bucket": Verdict.OK,
    }
    assert found["fallback model"].message == "luma.ray-v2:0; 0.75 to 1.5 USD a second"


def test_an_end_of_life_model_is_refused_with_its_date(bedrock, moto, clip_bucket):
    settings = bedrock_settings(bedrock, moto, clip_bucket, model="amazon.nova-reel-v1:1")
    settings = settings.model_copy(update={"region": "us-east-1"})
    assert "2026-09-30 (catalog" in verdicts(settings)["fallback model"].message
    bedrock.model_error, bedrock.end_of_life = None, "2026-09-30T00:00:00Z"
    assert "2026-09-30 (GetFoundationModel)" in verdicts(settings)["fallback model"].message
    bedrock.end_of_life = "2999-01-01T00:00:00Z"
    assert verdicts(settings)["fallback model"].verdict is Verdict.OK, "its own word wins over the catalog"


def test_a_model_that_is_not_there_and_a_bucket_that_is_not_there_are_failures(bedrock, moto):
    bedrock.model_error = "gone"
    found = verdicts(bedrock_settings(bedrock, moto, "no-such-bucket-here"))
    assert found["fallback model"].verdict is Verdict.FAIL
    assert (found["fallback bucket"].verdict, "NoSuchBucket" in found["fallback bucket"].message) == (
        Verdict.FAIL,
        True,
    )
    assert "ListBucketVersions" in found["fallback bucket"].remedy


def test_looking_costs_nothing(bedrock, moto, clip_bucket):
    verdicts(bedrock_settings(bedrock, moto, clip_bucket))
    assert (bedrock.starts, bedrock.files(clip_bucket)) == ([], [])
