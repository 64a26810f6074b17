"""Fetches current on-demand prices from the AWS Price List API. Needs the `aws` extra and credentials."""

import csv
import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any, Protocol

from filmgate.aws.clients import ClientOptions, Endpoint, check_boto3, has_credentials, open_client
from filmgate.aws.errors import aws_errors
from filmgate.catalog.instances import Price
from filmgate.errors import RunError, UsageError, WriteError

API_REGION = "us-east-1"  # serves the prices of all regions
_KEPT = "; other rates: "
COLUMNS = tuple(field.name for field in fields(Price))
FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "licenseModel": "No License required",
}
# The default timeouts of boto3.
OPTIONS = ClientOptions(60.0, 60.0, max_attempts=5)


class PriceList(Protocol):
    """The part of boto3's pricing client that is used here."""

    def get_products(self, **query: Any) -> dict[str, Any]: ...


def open_price_list() -> PriceList:
    """A client for the Price List API. Raises UsageError without the `aws` extra or credentials."""
    check_boto3("--refresh")
    if not has_credentials():
        raise UsageError("no AWS credentials found; set AWS_PROFILE or AWS_ACCESS_KEY_ID", option="--refresh")
    client: PriceList = open_client("pricing", Endpoint(API_REGION), OPTIONS)
    return client


def fetch_prices(client: PriceList, instances: Iterable[str], as_of: str) -> list[Price]:
    """On-demand prices of the instance types in every region. The API has no spot prices. Raises RunError."""
    products = ((name, json.loads(text)) for name in instances for text in _products(client, name))
    prices = (_to_price(product, name, as_of) for name, product in products)
    return [price for price in prices if price]


def _products(client: PriceList, instance: str) -> Iterator[str]:
    """The products of all pages, each as JSON."""
    wanted = {**FILTERS, "instanceType": instance}
    query: dict[str, Any] = {
        "ServiceCode": "AmazonEC2",
        "Filters": [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()],
    }
    while True:
        with aws_errors("Pricing", lambda failure: RunError(failure.message)):
            page = client.get_products(**query)
        yield from page.get("PriceList", [])
        if not page.get("NextToken"):
            return
        query["NextToken"] = page["NextToken"]


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
    """The old rows with new on-demand prices.

    Spot prices and rates of Savings Plans, which the API does not have, are kept with their source and date.
    """
    merged = {(price.instance, price.region): price for price in old}
    for price in new:
        before = merged.get((price.instance, price.region), price)
        source = price.source
        if any(rate is not None for rate in (before.spot_min, before.savings_1y, before.savings_3y)):
            origin = before.source.partition(_KEPT)[2] or f"{before.source} {before.as_of}"
            source = f"{price.source}{_KEPT}{origin}"
        merged[price.instance, price.region] = replace(
            before, source=source, as_of=price.as_of, on_demand=price.on_demand
        )
    return [merged[key] for key in sorted(merged)]


def write_prices(prices: Iterable[Price], path: Path) -> None:
    """Writes a CSV file in the shipped format, for `--prices FILE`. Raises WriteError."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            for price in prices:
                writer.writerow("" if value is None else value for value in astuple(price))
    except OSError as exc:
        raise WriteError(f"{path} cannot be written: {exc.strerror}") from exc
