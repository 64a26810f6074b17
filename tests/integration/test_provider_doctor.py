"""The doctor checks of the managed provider."""

from filmgate.providers.doctor import examine_provider
from filmgate.settings import ProviderSettings
from filmgate.telemetry.findings import Verdict
from tests.managed_site import bedrock_settings
from tests.second_filmgate import endpoint_settings
from tests.service import running, settings_for


def examine(settings):
    return {finding.subject: finding for finding in examine_provider(settings)}


def test_a_disabled_provider_is_ok():
    assert examine(ProviderSettings())["provider"].verdict is Verdict.OK


def test_the_endpoint_must_list_its_models_for_the_configured_key(tmp_path):
    with running(settings_for(tmp_path)) as service:
        good = examine(endpoint_settings(service, usd_per_second=0.25))["provider endpoint"]
        bad = examine(endpoint_settings(service, api_key="wrong"))["provider endpoint"]
    assert good.verdict is Verdict.OK
    assert "flipbook" in good.message
    assert "0.25 USD per second" in good.message
    assert (bad.verdict, "HTTP 401" in bad.message) == (Verdict.FAIL, True)
    assert "provider.key_file" in bad.remedy


def test_an_unreachable_endpoint_is_a_warning():
    settings = ProviderSettings(kind="http", url="http://127.0.0.1:9/v1", timeout_seconds=1)
    assert examine(settings)["provider endpoint"].verdict is Verdict.WARN


def test_an_invalid_setting_is_a_failure_that_names_it():
    found = examine(ProviderSettings(kind="bedrock", region="us-west-2"))["provider"]
    assert (found.verdict, "provider.bucket" in found.remedy) == (Verdict.FAIL, True)


def test_a_working_bedrock_has_three_ok_findings(bedrock, moto, clip_bucket):
    found = examine(bedrock_settings(bedrock, moto, clip_bucket))
    assert {subject: finding.verdict for subject, finding in found.items()} == {
        "provider model": Verdict.OK,
        "provider jobs": Verdict.OK,
        "provider bucket": Verdict.OK,
    }
    assert found["provider model"].message == "luma.ray-v2:0; 0.75 to 1.5 USD per second"


def test_a_model_past_its_end_of_life_fails_with_the_date(bedrock, moto, clip_bucket):
    settings = bedrock_settings(bedrock, moto, clip_bucket, model="amazon.nova-reel-v1:1")
    settings = settings.model_copy(update={"region": "us-east-1"})
    assert "2026-09-30 (catalog" in examine(settings)["provider model"].message
    bedrock.model_error, bedrock.end_of_life = None, "2026-09-30T00:00:00Z"
    assert "2026-09-30 (GetFoundationModel)" in examine(settings)["provider model"].message
    bedrock.end_of_life = "2999-01-01T00:00:00Z"
    assert examine(settings)["provider model"].verdict is Verdict.OK, (
        "GetFoundationModel is newer than the catalog"
    )


def test_a_missing_model_and_a_missing_bucket_are_failures(bedrock, moto):
    bedrock.model_error = "gone"
    found = examine(bedrock_settings(bedrock, moto, "no-such-bucket-here"))
    assert found["provider model"].verdict is Verdict.FAIL
    assert (found["provider bucket"].verdict, "NoSuchBucket" in found["provider bucket"].message) == (
        Verdict.FAIL,
        True,
    )
    assert "ListBucketVersions" in found["provider bucket"].remedy


def test_the_checks_start_no_job_and_write_no_file(bedrock, moto, clip_bucket):
    examine(bedrock_settings(bedrock, moto, clip_bucket))
    assert (bedrock.starts, bedrock.files(clip_bucket)) == ([], [])
