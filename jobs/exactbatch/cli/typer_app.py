"""The common part of all commands: `-h`, and help that shows no type for flags, which take no value."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption
from typer.models import CommandFunctionType


class _PlainFlags:
    """Help has an empty column for flags, the option `--help` included, instead of `<bool>`."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options of a command."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class beside this one
        for param in params:
            if isinstance(param, TyperOption) and param.is_flag and param.metavar is None:
                param.metavar = ""
        return params


class _Command(_PlainFlags, TyperCommand):
    """One command."""


class Group(_PlainFlags, TyperGroup):
    """A command that has commands."""


class App(typer.Typer):
    """A Typer app for such commands."""

    def __init__(self, *, cls: type[Group] = Group, **settings: Any) -> None:
        """Take the settings of typer.Typer."""
        super().__init__(
            cls=cls,
            context_settings={"help_option_names": ["--help", "-h"]},
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            **settings,
        )

    def command(
        self, name: str | None = None, **settings: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """Return a decorator that adds a command, with the settings of typer.Typer.command()."""
        return super().command(name, cls=_Command, **settings)
