"""From the words of a command line to a call: flags of a command, its help, errors on one line."""

from __future__ import annotations

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, get_args, get_origin, get_type_hints

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import LINE_WIDTH, UsageError, note
from torchcaps.cli.flags import (
    Argument,
    Flag,
    Modules,
    Threads,
    format_type,
    kinds_of,
    parse_value,
    use_threads,
)
from torchcaps.cli.settings import Settings, list_settings
from torchcaps.errors import TorchcapsError, UnknownNameError, one_line

Command = Callable[..., int]
HELP = ("-h", "--help")
HELP_ALL = "--help-all"
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
HELP_COLUMN = 28  # of the descriptions of flags
SHARED = ""  # in place of the parameter of a command: an argument that all commands have


class Call(NamedTuple):
    """A command with its arguments.

    Attributes:
        command: returns the exit status.
        positional: arguments by position.
        flags: arguments by name, those that the command line names.
    """

    command: Command
    positional: list[Any]
    flags: dict[str, Any]


def parse(commands: Mapping[str, Command], words: Sequence[str], description: str) -> Call:
    """The call that a command line asks for.

    Args:
        commands: by name. A function's signature is its flags, and its docstring is its help.
        words: those after the program's name.
        description: of the program, for its help.

    Returns:
        The command with its arguments, which is not run yet.

    Raises:
        UsageError: the command line is wrong.
        SystemExit: of status 0, after help.
    """
    name = "".join(words[:1])
    if name in HELP:
        print(_list_commands(commands, description))
        raise SystemExit(0)
    if name not in commands:
        problem = f"unknown command {name!r}{_suggestion(name, commands)}"
        raise UsageError(f"{problem if name else 'expected a command'}; see torchcaps --help")
    words = _normalize(words[1:])
    import_modules(words)
    is_short = HELP_ALL not in words
    arguments = _list_arguments(name, commands[name], is_short)
    parser = _make_parser(name, commands[name], arguments, is_short)
    values, unknown = parser.parse_known_intermixed_args(words)
    if unknown and unknown[0].startswith("-"):
        known = [option for action in parser._actions for option in action.option_strings]
        parser.error(
            f"unknown flag {unknown[0]}{_suggestion(unknown[0], known)}; a flag of a plug-in needs "
            "--import MODULE"
        )
    if unknown:
        parser.error(f"expected no further words, got {' '.join(unknown)}")
    return _make_call(commands[name], arguments, vars(values))


def _make_call(command: Command, arguments: Sequence[Argument], values: Mapping[str, Any]) -> Call:
    """The call of a command with these values of arguments, by name."""
    members: dict[str, dict[str, Any]] = {}  # by the parameter that they belong to
    for argument in arguments:
        if argument.name in values:
            value = values[argument.name]
            value = tuple(value) if isinstance(value, list) else value
            members.setdefault(argument.parameter, {})[argument.name] = value
    if "threads" in members.get(SHARED, {}):
        use_threads(members[SHARED]["threads"])

    hints = get_type_hints(command)
    call = Call(command, [], {})
    for name, parameter in inspect.signature(command).parameters.items():
        values = members.get(name, {})
        if parameter.kind is parameter.POSITIONAL_ONLY:
            call.positional.append(values.get(name, ()))
        elif hints[name] == Settings:
            call.flags[name] = values
        elif is_dataclass(hints[name]):
            call.flags[name] = hints[name](**values)
        else:
            call.flags.update(values)
    return call


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; argparse itself would print the usage and end the program."""
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def _make_parser(
    name: str, command: Command, arguments: Sequence[Argument], is_short: bool
) -> _Parser:
    """The parser of a command; what a command line does not name is left to the command.

    Args:
        name: of the command.
        command: its function.
        arguments: its arguments.
        is_short: leave rare flags out of the help.
    """
    paragraphs = _read_docstring(command)[0].split("\n\n")
    usage = f"torchcaps {name}"
    for argument in arguments:
        if argument.is_positional:
            usage += f" {argument.flag.metavar or argument.name.upper()}"
    parser = _Parser(
        prog=f"torchcaps {name}",
        usage=f"{usage} [FLAGS]",
        description="\n\n".join(map(partial(textwrap.fill, width=LINE_WIDTH), paragraphs)),
        formatter_class=partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=HELP_COLUMN
        ),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    for argument in arguments:
        _add_argument(parser, argument, is_short)
    parser.add_argument(*HELP, action="help", help="Print the common flags.")
    parser.add_argument(HELP_ALL, action="help", help="Print every flag.")
    return parser


def _add_argument(parser: _Parser, argument: Argument, is_short: bool) -> None:
    """Add an argument of a command to its parser."""
    name, kind, default, flag, _, is_positional = argument
    is_several = get_origin(kind) is tuple and not flag.is_word
    if is_several:
        kind = get_args(kind)[0]
    options: dict[str, Any] = {
        "help": flag.help,
        "metavar": flag.metavar or format_type(kind),
        "type": partial(parse_value, kind),
    }
    if is_positional:
        options["metavar"] = flag.metavar or name.upper()
        if is_several:
            options["nargs"] = "*"
        elif default is not inspect.Parameter.empty:
            options |= {"nargs": "?", "default": default}
        parser.add_argument(name, **options)
        return
    if is_several:
        options |= {"action": "extend", "nargs": "+"} if flag.is_list else {"action": "append"}
    if bool in kinds_of(kind):
        is_off = default is False and not flag.is_word
        options = {"help": options["help"], "action": argparse.BooleanOptionalAction}
        if is_off:
            options["action"] = "store_true"
    elif default not in (None, "", (), {}):
        options["help"] += f" (default: {default})"
    options["help"] = options["help"].replace("%", "%%")
    if flag.is_rare and is_short:
        options["help"] = argparse.SUPPRESS
    option = f"--{flag.name or name}".replace("_", "-")
    parser.add_argument(option, dest=name, **options)


def _list_arguments(name: str, command: Command, is_short: bool) -> list[Argument]:
    """The arguments of a command.

    They have `--import`, and `--threads` where something is computed.
    """
    hints = get_type_hints(command, include_extras=True)
    about = _read_docstring(command)[1]
    arguments: list[Argument] = []
    for key, parameter in inspect.signature(command).parameters.items():
        hint = hints[key]
        if hint == Settings:
            arguments += list_settings(key, is_short)
        elif is_dataclass(hint):
            members_about = _read_docstring(hint)[1]
            member_hints = get_type_hints(hint, include_extras=True)
            for member in fields(hint):
                kind, flag = _read_hint(member_hints[member.name], members_about.get(member.name))
                arguments.append(Argument(member.name, kind, member.default, flag, key))
        else:
            kind, flag = _read_hint(hint, about.get(key))
            is_positional = parameter.kind is parameter.POSITIONAL_ONLY
            arguments.append(Argument(key, kind, parameter.default, flag, key, is_positional))
    shared = {"threads": Threads, "modules": Modules}
    if "threads" in hints or name in WITHOUT_THREADS:
        del shared["threads"]
    for key, hint in shared.items():
        kind, flag = _read_hint(hint)
        arguments.append(Argument(key, kind, None, flag, SHARED))
    return arguments


def _read_hint(hint: Any, about: str | None = None) -> tuple[Any, Flag]:
    """The type of an argument, and how it is written, with what a docstring says about it."""
    kind, flag = get_args(hint) if get_origin(hint) is Annotated else (hint, Flag())
    return kind, flag if about is None else flag._replace(help=about)


def _read_docstring(documented: Any) -> tuple[str, dict[str, str]]:
    """The text of a docstring, and what it says about arguments or attributes, by name."""
    docstring = inspect.getdoc(documented) or ""
    text, *sections = re.split(r"\n\n(?:Args|Attributes):\n", docstring)
    about = {}
    for name, description in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", "".join(sections), re.M):
        about[name] = " ".join(description.split())
    return text, about


def _normalize(words: Sequence[str]) -> list[str]:
    """The words of a command line with flags by their names here.

    Raises:
        UsageError: a word is empty, which comes from a variable that is not set; as a path it would
            be the current folder.
    """
    normalized = []
    place = "command line"
    for word in words:
        written, equals, value = word.partition("=")
        is_flag = written.startswith("--")
        if is_flag:
            place = written.replace("_", "-")
            place = SYNONYMS.get(place, place)
            word = place + equals + value
        if not word or (is_flag and equals and not value):
            raise UsageError(f"{place}: expected a value, got an empty word")
        if not is_flag:
            place = "command line"
        normalized.append(word)
    return normalized


def _list_commands(commands: Mapping[str, Command], description: str) -> str:
    """The help of the program: a line for each command."""
    lines = [description, "", "commands:"]
    for name, command in commands.items():
        summary = (inspect.getdoc(command) or "").partition("\n\n")[0].replace("\n", " ")
        indent = " " * 14
        heading = f"  {name:<12}"
        lines.append(
            textwrap.fill(summary, LINE_WIDTH, initial_indent=heading, subsequent_indent=indent)
        )
    return "\n".join([*lines, "", "torchcaps COMMAND --help describes a command."])


def _suggestion(name: str, known: Iterable[str]) -> str:
    """`; did you mean --epochs?`, or nothing."""
    similar = get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    return f"; did you mean {similar[0]}?" if similar else ""


def find_values(flag: str, arguments: Sequence[str]) -> list[str]:
    """The values of a flag in a command line that is not parsed yet.

    Args:
        flag: with its two hyphens.
        arguments: the command line.
    """
    values = []
    for word, next_word in pairwise([*arguments, ""]):
        if word.startswith(f"{flag}="):
            values.append(word.removeprefix(f"{flag}="))
        elif word == flag and next_word:
            values.append(next_word)
    return values


def import_modules(arguments: Sequence[str]) -> None:
    """Import plug-ins and the modules that a command line names; they may add flags.

    Args:
        arguments: the command line.

    Raises:
        UsageError: for a module that is not found.
    """
    plugins.load_entry_points(tell=lambda sentence: note(f"torchcaps: warning: {sentence}"))
    for name in find_values("--import", arguments):
        try:
            plugins.import_module(name)
        except ModuleNotFoundError as error:
            raise UsageError(f"--import {error}") from error


@contextmanager
def hinted(*arguments: Any) -> Iterator[None]:
    """Where a name is unknown, name the modules that a run was started with and this command not.

    They are never imported by themselves: a file from elsewhere must not choose what code runs
    here.

    Args:
        arguments: of a command; paths among them may be those of runs.

    Raises:
        UsageError: in place of an error that comes from an unknown name.
    """
    try:
        yield
    except TorchcapsError as error:
        if isinstance(error, UnknownNameError) or isinstance(error.__cause__, UnknownNameError):
            flat = chain.from_iterable(
                argument if isinstance(argument, tuple) else (argument,) for argument in arguments
            )
            for path in flat:
                if isinstance(path, Path):
                    _check_imports(path if path.is_dir() else path.parent, error)
        raise


def _check_imports(folder: Path, error: TorchcapsError) -> None:
    """Raise UsageError if a run was started with modules that are not imported here."""
    names = tc.training.Run(folder).environment.get("imports")
    if not isinstance(names, list):
        return
    missing = [name for name in names if isinstance(name, str) and name not in plugins.imported()]
    if missing:
        sentence = one_line(
            f"{error}; {folder} was started with{plugins.flags(missing)}: "
            "give that to this command too, if you trust the module"
        )
        raise UsageError(sentence) from error
