"""Prices as AWS lists them today, from its Price List API; needs boto3 and credentials."""

import csv
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from filmgate.aws.clients import check_boto3, has_credentials, open_pricing
from filmgate.aws.errors import aws_errors
from filmgate.catalog.instances import Price
from filmgate.errors import RunError, UsageError

FIELDS = (
    "instance",
    "region",
    "on_demand",
    "spot_min",
    "spot_median",
    "spot_max",
    "zones",
    "source",
    "as_of",
)
FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "licenseModel": "No License required",
}


class PriceList(Protocol):
    """The one call made on boto3's pricing client."""

    def get_products(self, **question: Any) -> dict[str, Any]: ...


def open_price_list() -> PriceList:
    """Opens the Price List API, which serves the prices of every region from us-east-1."""
    check_boto3("--refresh")
    if not has_credentials():
        raise UsageError("no AWS credentials found; set AWS_PROFILE or AWS_ACCESS_KEY_ID", option="--refresh")
    client: PriceList = open_pricing("us-east-1")
    return client


def fetch_prices(client: PriceList, instances: Iterable[str], as_of: str) -> list[Price]:
    """On-demand prices of the instances in every region; spot is not in this API."""
    return [price for name in instances for price in _prices_of(client, name, as_of)]


def _prices_of(client: PriceList, instance: str, as_of: str) -> Iterator[Price]:
    wanted = {**FILTERS, "instanceType": instance}
    question: dict[str, Any] = {
        "ServiceCode": "AmazonEC2",
        "Filters": [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()],
    }
    while True:
        with aws_errors("Pricing", lambda failure: RunError(failure.message)):
            page = client.get_products(**question)
        for text in page.get("PriceList", []):
            price = _to_price(json.loads(text), instance, as_of)
            if price:
                yield price
        if not page.get("NextToken"):
            return
        question["NextToken"] = page["NextToken"]


def _to_price(product: dict[str, Any], instance: str, as_of: str) -> Price | None:
    region = product.get("product", {}).get("attributes", {}).get("regionCode")
    rates = [
        float(dimension["pricePerUnit"]["USD"])
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term.get("priceDimensions", {}).values()
        if dimension.get("unit") == "Hrs" and "USD" in dimension.get("pricePerUnit", {})
    ]
    positive = [rate for rate in rates if rate > 0]
    if not region or not positive:
        return None
    return Price(instance, region, "AWS Price List API", as_of, on_demand=min(positive))


def merge_prices(old: Iterable[Price], new: Iterable[Price]) -> list[Price]:
    """New on-demand prices over the old rows, whose spot range and its date's source are kept."""
    merged = {(price.instance, price.region): price for price in old}
    for price in new:
        before = merged.get((price.instance, price.region))
        spot = (before.spot_min, before.spot_median, before.spot_max, before.zones) if before else (None,) * 4
        source = (
            f"{price.source}; spot: {before.source} {before.as_of}"
            if before and before.spot_min
            else price.source
        )
        merged[price.instance, price.region] = Price(
            price.instance, price.region, source, price.as_of, price.on_demand, *spot
        )
    return [merged[key] for key in sorted(merged)]


def write_prices(prices: Iterable[Price], path: Path) -> None:
    """One CSV in the shipped format, which `--prices FILE` reads back."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(FIELDS)
        for price in prices:
            row = (getattr(price, field) for field in FIELDS)
            writer.writerow("" if value is None else value for value in row)
