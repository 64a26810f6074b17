"""The shipped catalog and calibration, loaded once."""

import pytest

from filmgate.catalog.loader import load_calibration, load_catalog


@pytest.fixture(scope="session")
def catalog():
    return load_catalog()


@pytest.fixture(scope="session")
def calibration():
    return load_calibration()


@pytest.fixture(scope="session")
def constants(calibration):
    return calibration.constants
