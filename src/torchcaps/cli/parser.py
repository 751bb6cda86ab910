"""From the words of a command line to a call: flags of a command, its help, errors on one line."""

from __future__ import annotations

import inspect
import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from torchcaps.cli.console import LINE_WIDTH, UsageError
from torchcaps.cli.flags import RARE, Threads, format_type, use_threads
from torchcaps.cli.imports import Modules, hinted, import_modules
from torchcaps.cli.settings import Settings, named_settings, settings_class

Command = Callable[..., int]
HELP_ALL = "--help-all"
HELP_FLAGS = frozenset({"-h", "--help"})
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
WITHOUT_THREADS = ("models", "recipes", "data", "import", "doctor")  # commands that compute nothing
# What tyro's sentence about a number says, and what was expected.
NUMBERS = {"int()": "a whole number", "to float": "a number"}


class Call(NamedTuple):
    """A command with its arguments.

    Attributes:
        command: returns the exit status.
        positional: arguments by position.
        flags: arguments by name.
    """

    command: Command
    positional: tuple[Any, ...]
    flags: dict[str, Any]

    def run(self) -> int:
        """Run the command; its exit status."""
        with hinted(*self.positional, *self.flags.values()):
            return self.command(*self.positional, **self.flags)


def parse(commands: Mapping[str, Command], arguments: Sequence[str], description: str) -> Call:
    """The call that a command line asks for.

    Args:
        commands: by name. A function's signature is its flags, and its docstring is its help.
        arguments: the words after the program's name.
        description: of the program, for its help.

    Returns:
        The command with its arguments, which is not run yet.

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
        is_short = not HELP_FLAGS.isdisjoint(words)
        signature = _signature(name, commands[name], is_short)
        words = _normalized_words(name, signature, words)
        functions[name] = _deferred(commands[name], signature, words)
    printed = io.TextIOWrapper(io.BytesIO(), encoding=sys.stdout.encoding)  # tyro looks at it
    try:
        with redirect_stdout(printed), redirect_stderr(printed):
            return tyro.extras.subcommand_cli_from_dict(
                functions,
                prog="torchcaps",
                description=description,
                args=words,
                sort_subcommands=False,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as end:
        printed.seek(0)
        if not end.code:
            _print_help(printed.read())
            raise
        problem = _problem(printed.read())
        if not name:
            problem = "expected a command"
        elif name not in commands:
            problem = f"unknown command {name!r}{_suggestion(name, commands)}"
        help_flag = f"{name} --help" if name in commands else "--help"
        raise UsageError(f"{problem}; see torchcaps {help_flag}") from None


def _print_help(text: str) -> None:
    """Print help of tyro, which does not wrap what stands outside of its boxes."""
    for line in text.splitlines():
        print(textwrap.fill(line, LINE_WIDTH, subsequent_indent="    " * ("usage" in line)))


def _described(command: Command) -> Callable[[], int]:
    """A command that is not called: the first line of its help.

    It has no flags, which would have to import torch.
    """

    def run() -> int:
        raise AssertionError("the command that is called has flags")

    run.__doc__ = command.__doc__
    return run


def _signature(name: str, command: Command, is_short: bool) -> inspect.Signature:
    """The parameters of a command as tyro gets them.

    They have `--import`, and `--threads` where something is computed. Types and defaults are such
    that the help reads well.

    Args:
        name: of the command.
        command: its function.
        is_short: leave rare flags out, for a short help.
    """
    hints = get_type_hints(command, include_extras=True)
    if hints.get("settings") == Settings:
        hints["settings"] = settings_class(is_short)
    parameters = dict(inspect.signature(command).parameters)
    flags = _flags(hints)
    shared = {"threads": (Threads, None), "modules": (Modules, ())}
    if "--threads" in flags or name in WITHOUT_THREADS:
        del shared["threads"]
    for key, (hint, default) in shared.items():
        hints[key] = hint
        parameters[key] = inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default)
    readable = []
    for key, parameter in parameters.items():
        if not (is_short and RARE in get_args(hints[key])):
            readable.append(parameter.replace(annotation=_readable(hints[key], parameter.default)))
    return inspect.Signature(readable)


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


def _normalized_words(name: str, signature: inspect.Signature, words: Sequence[str]) -> list[str]:
    """The words with flags by their names here.

    Raises:
        UsageError: a flag that the command does not have, or a value for one that takes none.
    """
    flags = _flags({key: one.annotation for key, one in signature.parameters.items()})
    normalized = []
    for word in words:
        if not word.startswith("--") or word == "--":
            normalized.append(word)
            continue
        written, equals, value = word.partition("=")
        flag = written.replace("_", "-")
        if flag not in flags:
            flag = SYNONYMS.get(flag, "")
        if flag not in flags:
            raise UsageError(
                f"unknown flag {written}{_suggestion(written, flags)}; "
                f"see torchcaps {name} --help; a flag of a plug-in needs --import MODULE"
            )
        if equals and flags[flag] is bool:
            opposite = flag.replace("--", "--no-", 1)
            raise UsageError(f"{flag}: expected no value, got {value}; its opposite is {opposite}")
        normalized.append("--help" if flag == HELP_ALL else flag + equals + value)
    return normalized


def _flags(hints: Mapping[str, Any]) -> dict[str, Any]:
    """The type of every flag of a command, by the types of its parameters."""
    flags: dict[str, Any] = dict.fromkeys((*HELP_FLAGS, HELP_ALL), bool)
    for name, hint in hints.items():
        kind, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if is_dataclass(kind):
            flags |= _flags({member.name: member.type for member in fields(kind)})
            continue
        own_names = [mark.name for mark in marks if getattr(mark, "name", None)]
        flag = "".join(own_names[-1:] or [name]).replace("_", "-")
        flags[f"--{flag}"] = kind
        if kind is bool:
            flags[f"--no-{flag}"] = kind
    return flags


def _suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean --epochs?`, or nothing."""
    similar = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {similar[0]}?" if similar else ""


def _deferred(
    command: Command, signature: inspect.Signature, words: Sequence[str]
) -> Callable[..., Call]:
    """A function for tyro that returns the call of the command, so that parsing ends before it."""
    hints = get_type_hints(command, include_extras=True)
    has_settings = hints.get("settings") == Settings
    command_flags = _flags(hints)

    def make_call(*positional: Any, **flags: Any) -> Call:
        if "threads" in flags and "--threads" not in command_flags:
            use_threads(flags.pop("threads"))
        if has_settings:
            flags["settings"] = named_settings(flags["settings"], words)
        del flags["modules"]  # they are imported already
        return Call(command, positional, flags)

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
    lines = [line.strip("│|+ ") for line in box.splitlines()[1:]]  # below the title
    paragraphs = re.split("\n?[-─╰╯]{3,}\n?", "\n".join(lines))
    text = " ".join(next(filter(None, paragraphs), "").split())
    if match := re.match(r"Error parsing (\S+): (.*)'(.*)'", text):
        flag, reason, word = match.groups()
        expected = [kind for part, kind in NUMBERS.items() if part in reason]
        if expected:
            return f"{flag}: expected {expected[0]}, got {word!r}"
    if match := re.match(r"invalid choice ('.*') for argument '(\S+)'.*\('(.*)'\)", text):
        word, flag, choices = match.groups()
        *others, last = choices.split("', '")
        return f"{flag}: expected {', '.join(others)} or {last}, got {word}"
    if match := re.match(r"Missing from [^:]*: (\S+)", text):
        return f"expected {match[1]}"
    return text[:1].lower() + text[1:].rstrip(".")
