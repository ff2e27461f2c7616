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


def test_cells_of_tables_with_three_columns_are_labelled_for_phones(pages):
    head = "<table><thead><tr><th>a</th><th>b &amp; <code>c</code></th>{}</tr></thead><tbody>"
    two = head.format("") + "<tr><td>1</td><td>2</td></tr></tbody></table>"
    three = head.format('<th style="text-align: right">d</th>')
    three += '<tr><td>1</td><td>2</td><td style="text-align: right">3</td></tr></tbody></table>'
    assert pages.label_cells(two) == two
    assert pages.label_cells(three) == three.replace("<td>1", '<td data-label="a">1').replace(
        "<td>2", '<td data-label="b &amp; c">2'
    ).replace("<td style", '<td data-label="d" style')
