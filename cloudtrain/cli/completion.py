"""The command `completion`: the completion script of a shell."""

from __future__ import annotations

import click

from cloudtrain.cli.terminal import write


@click.command("completion", epilog='Example:\n\n  eval "$(cloudtrain completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL; add the line below to your shell's start-up file."""
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    if completer is None:
        ctx.fail(f"no completion for {shell}")

    write(completer(ctx.find_root().command, {}, "cloudtrain", "_CLOUDTRAIN_COMPLETE").source())
