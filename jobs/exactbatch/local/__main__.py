"""`python -m exactbatch.local`: the same as `exactbatch local`."""

from exactbatch.local.commands import app

app(prog_name="exactbatch local")
