"""The demo: real flights through real servers. `python -m exactbatch.local.demo` runs it from a checkout."""
