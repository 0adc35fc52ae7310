"""What tests of pages share; each module gives its own `page_text` or `page_file`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.experiments.report.browser import Browser, Tab
from tests.experiments.report.parsed_page import Page


@pytest.fixture(scope="module")
def page(page_text: str) -> Page:
    return Page(page_text)


@pytest.fixture(scope="module")
def tab(driver: webdriver.Chrome, downloads: Path, page_file: Path) -> Tab:
    return Tab(driver, page_file.as_uri(), downloads)


@pytest.fixture
def shared(tab: Tab) -> Iterator[Browser]:
    with tab.shown() as browser:
        yield browser
