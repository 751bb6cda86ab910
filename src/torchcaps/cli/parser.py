"""From the words of a command line to a call: flags of a command, its help, errors on one line."""

from __future__ import annotations

import inspect
import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from torchcaps.cli.console import UsageError
from torchcaps.cli.flags import Threads, format_type, use_threads
from torchcaps.cli.imports import Modules, hinted, import_modules
from torchcaps.cli.settings import Settings, named_settings, settings_class

Command = Callable[..., int]
HELP_ALL = "--help-all"
HELP = ("-h", "--help", HELP_ALL)
# Flags of other tools and libraries, and what they are called here.
SYNONYMS = {
    "--batch": "--batch-size",
    "--imgsz": "--img-size",
    "--image-size": "--img-size",
    "--learning-rate": "--lr",
    "--num-epochs": "--epochs",
    "--num-workers": "--workers",
    "--wd": "--weight-decay",
}
# What tyro's sentence about a number says, and what was expected.
NUMBERS = {"int()": "a whole number", "to float": "a number"}


def parse(
    commands: Mapping[str, Command], arguments: Sequence[str], description: str
) -> Callable[[], int]:
    """The call that a command line asks for.

    Args:
        commands: by name. A function's signature is its flags, and its docstring is its help.
        arguments: the words after the program's name.
        description: of the program, for its help.

    Returns:
        A function without arguments that runs the command and returns its exit status.

    Raises:
        UsageError: the command line is wrong.
        SystemExit: of status 0, after help.
    """
    name = "".join(arguments[:1])
    words = [*arguments]
    functions: dict[str, Callable[..., Any]] = {}
    for key, command in commands.items():
        functions[key] = _described(command)
    if name in commands:
        import_modules(arguments)
        signature = _signature(commands[name], is_short=not {HELP_ALL}.intersection(words))
        words = _known_words(name, signature, words)
        functions[name] = _deferred(commands[name], signature, words)
    box = io.StringIO()
    try:
        with redirect_stderr(box):
            return tyro.extras.subcommand_cli_from_dict(
                functions,
                prog="torchcaps",
                description=description,
                args=words,
                sort_subcommands=False,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as end:
        if end.code != 2:
            raise
        problem = _problem(box.getvalue())
        if not name:
            problem = "expected a command"
        elif name not in commands:
            problem = f"unknown command {name!r}{_suggestion(name, commands)}"
        help_flag = f"{name} --help" if name in commands else "--help"
        raise UsageError(f"{problem}; see torchcaps {help_flag}") from None


def _described(command: Command) -> Callable[[], int]:
    """A command that is not called: the first line of its help.

    It has no flags, which would have to import torch.
    """

    def run() -> int:
        raise AssertionError("the command that is called has flags")

    run.__doc__ = command.__doc__
    return run


def _signature(command: Command, is_short: bool) -> inspect.Signature:
    """The parameters of a command as tyro gets them.

    They have `--import`, and `--threads` unless the command has none of its own. Types and defaults
    are such that the help reads well.

    Args:
        command: the function.
        is_short: leave rare settings out of the help. Without help all are parsed.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = dict(inspect.signature(command).parameters)
    for name, hint, default in (("threads", Threads, None), ("modules", Modules, ())):
        if name not in parameters:
            hints[name] = hint
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters[name] = inspect.Parameter(name, kind, default=default)
    if hints.get("settings") == Settings:
        hints["settings"] = settings_class(is_short)
    return inspect.Signature(
        [
            parameter.replace(annotation=_readable(hints[name], parameter.default))
            for name, parameter in parameters.items()
        ]
    )


def _readable(hint: Any, default: Any) -> Any:
    """A type hint with what the help of tyro shows of it: `INT`, and a default only if it says it.

    A flag that is off by default has no opposite.
    """
    marks: list[Any] = []
    kinds = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if default is False:
        marks.append(tyro.conf.FlagCreatePairsOff)
    if default is None or isinstance(default, bool) or default == ():
        marks.append(tyro.conf.arg(help_behavior_hint=""))
    has_metavar = any(getattr(mark, "metavar", None) for mark in kinds[1:])
    if NoneType in get_args(kinds[0]) and not has_metavar:
        kind = format_type(kinds[0])
        is_positional = tyro.conf.Positional in kinds[1:]
        marks.append(tyro.conf.arg(metavar=f"[{kind}]" if is_positional else kind))
    return Annotated[(hint, *marks)] if marks else hint


def _known_words(name: str, signature: inspect.Signature, words: Sequence[str]) -> list[str]:
    """The words with flags by their names here.

    Raises:
        UsageError: a flag that the command does not have.
    """
    flags = _flags(signature)
    known_words = []
    for word in words:
        flag, equals, value = word.partition("=")
        spelled = flag.replace("_", "-")
        if word.startswith("--") and spelled not in flags and word != "--":
            spelled = SYNONYMS.get(spelled, "")
            if spelled not in flags:
                hint = _suggestion(flag, flags)
                raise UsageError(
                    f"unknown flag {flag}{hint}; see torchcaps {name} --help; "
                    "a flag of a plug-in needs --import MODULE"
                )
        if word == HELP_ALL:
            spelled = "--help"
        known_words.append(spelled + equals + value if word.startswith("--") else word)
    return known_words


def _flags(signature: inspect.Signature) -> set[str]:
    """Every flag of a command."""
    names = {*HELP}
    for parameter in signature.parameters.values():
        hint = parameter.annotation
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        kind = get_args(hint)[0] if marks else hint
        members = {parameter.name: kind}
        if is_dataclass(kind):
            members = {member.name: member.type for member in fields(kind)}
        for member in members:
            renamed = [mark.name for mark in marks if getattr(mark, "name", None)]
            flag = "".join(renamed[-1:] or [member]).replace("_", "-")
            names |= {f"--{flag}", f"--no-{flag}"}
    return names


def _suggestion(name: str, known: Sequence[str] | set[str] | Mapping[str, Any]) -> str:
    """`; did you mean --epochs?`, or nothing."""
    similar = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {similar[0]}?" if similar else ""


def _deferred(
    command: Command, signature: inspect.Signature, words: Sequence[str]
) -> Callable[..., Callable[[], int]]:
    """A function for tyro that returns the call of the command, so that parsing ends before it."""
    own_names = inspect.signature(command).parameters
    has_settings = get_type_hints(command).get("settings") == Settings

    def make_call(*positional: Any, **flags: Any) -> Callable[[], int]:
        if "threads" not in own_names:
            use_threads(flags.pop("threads"))
        if has_settings:
            flags["settings"] = named_settings(flags["settings"], words)
        del flags["modules"]  # they are imported already

        def call() -> int:
            with hinted(*positional, *flags.values()):
                return command(*positional, **flags)

        return call

    make_call.__doc__ = _unwrap(inspect.getdoc(command) or "")
    make_call.__annotations__ = {
        name: parameter.annotation for name, parameter in signature.parameters.items()
    }
    vars(make_call)["__signature__"] = signature
    return make_call


def _unwrap(docstring: str) -> str:
    """A docstring with each argument on one line, because tyro keeps its line breaks."""
    return re.sub(r"\n {8,}", " ", docstring)


def _problem(box: str) -> str:
    """What tyro says in the box about an error, on one line."""
    lines = [line.strip("│╭╮╰╯─ ") for line in box.splitlines()[1:]]
    text = " ".join(lines[: lines.index("")] if "" in lines else lines)
    if match := re.match(r"Error parsing (\S+): (.*)'(.*)'", text):
        flag, reason, word = match.groups()
        expected = [kind for part, kind in NUMBERS.items() if part in reason]
        if expected:
            return f"{flag}: expected {expected[0]}, got {word!r}"
    if match := re.match(r"Missing from [^:]*: (\S+)", text):
        return f"expected {match[1]}"
    return text[:1].lower() + text[1:].rstrip(".")
