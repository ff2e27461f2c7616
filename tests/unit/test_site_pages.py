"""What the site makes of a page before it is rendered."""

from importlib import import_module

import pytest

from support.environment import DOCS

PAGE = """- one:
  - nested,
    further
- two

1. first:

   ```text
   code
     more
   ```

   further
2. second

no item
   of a list
```text
- code
  as it is
```"""
INDENTED = """- one:
    - nested,
        further
- two

1. first:

    ```text
    code
      more
    ```

    further

2. second

no item
   of a list
```text
- code
  as it is
```"""


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(DOCS / "site")
    return import_module("pages")


def test_what_is_within_an_item_is_indented_by_four_spaces_for_each_level(pages):
    assert pages.indent_items(PAGE) == INDENTED
    assert pages.indent_items(INDENTED) == INDENTED
