"""From the words of a command line to a call: flags of a command, its help, errors on one line."""

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torchcaps as tc
from torchcaps import plugins
from torchcaps.cli.console import LINE_WIDTH, UsageError, note, usage  # `usage` makes UsageErrors
from torchcaps.errors import TorchcapsError, UnknownNameError, check_known, check_range, one_line

Command = Callable[..., int | None]
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
# Commands that compute nothing.
WITHOUT_THREADS = ("models", "recipes", "data", "import", "doctor", "check")
HELP_COLUMN = 28  # of the descriptions of flags


class Flag(NamedTuple):
    """An argument of a command line; a command annotates what its signature does not say.

    Attributes:
        help: what it is, where the docstring of the command does not say it.
        metavar: what stands for its value in the help.
        name: of the flag, without hyphens; by default that of the parameter.
        is_rare: `--help` leaves it out; `--help-all` has it.
        is_list: it takes one value or more at once, where otherwise it is given several times.
        has_negation: of a switch, whether `--no-NAME` is a flag too, although it is off by default.
        kind: type of the value; of a `Sequence`, each value is a word.
        default: where the command line does not name it; `Parameter.empty` for none.
        is_positional: it is no flag.
    """

    help: str = ""
    metavar: str = ""
    name: str = ""
    is_rare: bool = False
    is_list: bool = False
    has_negation: bool = False
    kind: Any = str
    default: Any = None
    is_positional: bool = False


RARE = Flag(is_rare=True)
Run = Annotated[Path, Flag("A run folder, or a model.safetensors file.")]
RunOrOurs = Annotated[
    Path | None,
    Flag(
        "A run folder, or a model.safetensors file; by default a network that comes with the "
        "package."
    ),
]
Data = Annotated[str | None, Flag("Data set, by name or path; by default the run's own.")]
Root = Annotated[str | None, Flag("Folder that is searched first for a named data set.")]
Device = Annotated[str, Flag("auto, cpu, cuda, ...")]
Json = Annotated[bool, Flag("Print JSON instead of text.")]
Settings = Mapping[str, Any]  # the settings that a command line names
# Arguments of all commands, where they have none of this name.
SHARED = {
    "threads": Flag("Processor threads; by default torch's choice.", kind=int),
    "modules": Flag(
        "Module or .py file to import first, which registers things of your own; may be given "
        "several times.",
        "MODULE",
        "import",
        is_rare=True,
        kind=Sequence[str],
        default=(),
    ),
}
# Settings: `NAME` and `--option` give the first two; a training that is extended writes the last,
# the epochs at which it was to end before.
WITHOUT_FLAG = ("model", "model_options", "extended_at")
# Settings in the short help, `--help`; `--help-all` has all of them.
COMMON = frozenset(
    {
        "data",
        "img_size",
        "skip_damaged",
        "init",
        "backbone",
        "lr",
        "epochs",
        "batch_size",
        "device",
        "seed",
    }
)


def list_settings(is_short: bool) -> dict[str, Flag]:
    """The settings that a command line may change, by name.

    Args:
        is_short: describe each by its first clause.
    """
    from torchcaps.data.augment import ordered_augmentations
    from torchcaps.settings import known_settings

    switches = {name for change in ordered_augmentations() for name in change.switches}
    flags = {}
    for name, setting in known_settings().items():
        if name in WITHOUT_FLAG:
            continue
        text = setting.about
        if is_short:
            text = text.partition(";")[0]
        elif name in switches and setting.type is not bool:
            text += "; 0 is off"
        if not re.match(r"\w+[:,]", text):  # a value comes first
            text = text[0].upper() + text[1:]
        flags[name] = Flag(
            text.removesuffix(".") + ".",
            is_rare=name not in COMMON,
            has_negation=True,
            kind=setting.type,
            default=setting.default,
        )
    return flags


def forms_of(hint: Any) -> dict[str, Callable[[str], Any]]:
    """What a word for a value of a type may look like, and the function that reads it.

    The forms are written as in the help: `INT`; `INTxINT`; or the choices, as `auto|fp32`. A
    function raises ValueError for a word of another form.
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return dict(_form_of(kind) for kind in kinds if kind is not NoneType)


def _name_of(kind: type) -> str:
    return kind.__name__.upper()


def _form_of(kind: Any) -> tuple[str, Callable[[str], Any]]:
    """The form of one type."""
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return "|".join(parts), lambda word: parts[parts.index(word)]
    if get_origin(kind) is dict:
        # A comma within a value, as in betas=[0.9,0.99], is not followed by a name.
        return "NAME=VALUE,...", lambda word: parse_options(re.split(",(?=[^,=]+=)", word))
    if not parts:
        return _name_of(kind), kind
    if Ellipsis in parts:
        part = parts[0]
        return f"{_name_of(part)},...", lambda word: tuple(map(part, word.split(",")))
    return "x".join(map(_name_of, parts)), lambda word: tuple(
        part(side) for part, side in zip(parts, word.split("x"), strict=True)
    )


def parse_value(hint: Any, word: str) -> Any:
    """The value of a type that a word of the command line stands for.

    Raises:
        argparse.ArgumentTypeError: it stands for none. So does an empty word, which comes from a
            variable that is not set; as a path it would be the current folder.
    """
    if not word:
        raise argparse.ArgumentTypeError("expected a value, got an empty word")
    forms = forms_of(hint)
    for read in forms.values():
        with suppress(ValueError):  # the next one
            return read(word)
    raise argparse.ArgumentTypeError(f"expected {'|'.join(forms)}, got {word!r}")


def parse_options(texts: Sequence[str]) -> dict[str, Any]:
    """{"iterations": 2} from "iterations=2"; a value that is no JSON is text.

    Raises:
        UsageError: a text has no name or no value.
    """
    options: dict[str, Any] = {}
    for text in texts:
        name, equals, word = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--option: expected name=value, got {text!r}")
        if word in ("True", "False"):
            word = word.lower()
        try:
            options[name] = json.loads(word)
        except json.JSONDecodeError:
            options[name] = word
    return options


def check_flag(flag: str, number: float, low: float, high: float | None = None) -> None:
    """Raise UsageError unless low <= number <= high."""
    with usage():
        check_range(flag, number, low, high)


def use_threads(count: int) -> None:
    """Let torch take so many processor threads."""
    with usage():
        tc.training.device.set_threads("--threads", count)


def parse(
    commands: Mapping[str, Command], words: Sequence[str], description: str
) -> partial[int | None]:
    """The call that a command line asks for.

    Args:
        commands: by name. A function's signature is its flags, and its docstring is its help.
        words: those after the program's name.
        description: the help of the program.

    Returns:
        The command with its arguments, which is not run yet; it returns the exit status, or None
        for 0.

    Raises:
        UsageError: the command line is wrong.
        UnknownNameError: there is no such command or flag.
        SystemExit: of status 0, after help.
    """
    name = "".join(words[:1])
    if not name or name in HELP or name == HELP_ALL:
        print(description)
        raise SystemExit(0)
    check_known("command", name, commands)
    words = list(map(_normalize, words[1:]))
    # Import plug-ins and the modules that a command line names; they may add flags.
    plugins.load_entry_points(tell=lambda sentence: note(f"torchcaps: warning: {sentence}"))
    for module in find_values("--import", words):
        try:
            plugins.import_module(module)
        except ModuleNotFoundError as error:
            raise UsageError(f"--import {error}") from error
    command = commands[name]
    parser = _make_parser(name, command, is_short=HELP_ALL not in words)
    values, unknown = parser.parse_known_intermixed_args(words)
    if unknown and unknown[0].startswith("-"):
        options = [option for action in parser._actions for option in action.option_strings]
        hint = f"see {parser.prog} --help; a flag of a plug-in needs --import MODULE"
        raise UnknownNameError("flag", unknown[0].partition("=")[0], options, hint)
    if unknown:
        parser.error(f"expected no further words, got {' '.join(unknown)}")
    if "threads" in values:
        use_threads(values.threads)
    hints = get_type_hints(command)
    arguments: dict[str, Any] = {}
    for key, value in vars(values).items():  # by the keys of `list_arguments`
        name, _, member = key.partition(".")
        if member:
            arguments.setdefault(name, {})[member] = value
        elif name in hints:
            arguments[name] = value
    for name, members in arguments.items():
        if is_dataclass(hints[name]):
            arguments[name] = hints[name](**members)
    return partial(command, **arguments)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; argparse itself would print the usage and end the program."""
        raise UsageError(f"{message.removeprefix('argument ')}; see {self.prog} --help")


def _make_parser(name: str, command: Command, is_short: bool) -> _Parser:
    """The parser of a command; what a command line does not name is left to the command.

    Args:
        name: of the command.
        command: its function.
        is_short: leave rare flags out of the help.
    """
    flags = list_arguments(command, is_short)
    for key, flag in SHARED.items():
        if key != "threads" or name not in WITHOUT_THREADS:
            flags.setdefault(key, flag)
    paragraphs = _read_docstring(command)[0].split("\n\n")
    parser = _Parser(
        prog=f"torchcaps {name}",
        description="\n\n".join(map(partial(textwrap.fill, width=LINE_WIDTH), paragraphs)),
        formatter_class=partial(
            argparse.RawDescriptionHelpFormatter, max_help_position=HELP_COLUMN
        ),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        add_help=False,
    )
    words = ["%(prog)s"]
    for key, flag in flags.items():
        action = _add_argument(parser, key, flag, is_short)
        if flag.is_positional:
            words.append(str(action.metavar))
    parser.usage = f"{' '.join(words)} [FLAGS]"
    parser.add_argument(*HELP, action="help", help="Print the common flags.")
    parser.add_argument(HELP_ALL, action="help", help="Print every flag.")
    return parser


def _add_argument(parser: _Parser, key: str, flag: Flag, is_short: bool) -> argparse.Action:
    """Add an argument of a command to its parser."""
    kind = flag.kind
    name = key.rpartition(".")[2]
    is_several = get_origin(kind) is Sequence
    if is_several:
        [kind] = get_args(kind)
    options: dict[str, Any] = {
        "help": flag.help.replace("%", "%%"),  # as argparse wants it
        "metavar": flag.metavar
        or (name.upper() if flag.is_positional else "|".join(forms_of(kind))),
        "type": partial(parse_value, kind),
    }
    if flag.is_positional:
        if flag.default is not inspect.Parameter.empty:
            options |= {"nargs": "*" if is_several else "?", "default": flag.default}
        return parser.add_argument(key, **options)
    if is_several:
        options |= {"action": "extend", "nargs": "+"} if flag.is_list else {"action": "append"}
    if bool in (kind, *get_args(kind)):
        is_off = flag.default is False and not flag.has_negation
        action = "store_true" if is_off else argparse.BooleanOptionalAction
        options = {"help": options["help"], "action": action}
    elif flag.default not in (None, "", (), {}):
        options["help"] += f" (default: {flag.default})".replace("%", "%%")
    if flag.is_rare and is_short:
        options["help"] = argparse.SUPPRESS
    return parser.add_argument(f"--{flag.name or name}".replace("_", "-"), dest=key, **options)


def list_arguments(target: Any, is_short: bool) -> dict[str, Flag]:
    """The arguments that a command takes, by name; flags are its keyword-only parameters.

    Those of a dataclass among its parameters, and settings, have keys such as "results.json".

    Args:
        target: the function, or the class.
        is_short: describe each setting by its first clause.
    """
    hints = get_type_hints(target, include_extras=True)
    descriptions = _read_docstring(target)[1]
    flags: dict[str, Flag] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        hint = hints[name]
        if hint == Settings or is_dataclass(hint):
            members = list_settings if hint == Settings else partial(list_arguments, hint)
            for member, flag in members(is_short).items():
                flags[f"{name}.{member}"] = flag
        else:
            kind, flag = get_args(hint) if get_origin(hint) is Annotated else (hint, Flag())
            flags[name] = flag._replace(
                help=descriptions.get(name, flag.help),
                kind=kind,
                default=parameter.default,
                is_positional=parameter.kind is not parameter.KEYWORD_ONLY,
            )
    return flags


def _read_docstring(documented: Any) -> tuple[str, dict[str, str]]:
    """The text of a docstring, and what it says about arguments or attributes, by name."""
    docstring = inspect.getdoc(documented) or ""
    text, *sections = re.split(r"\n\n(?:Args|Attributes):\n", docstring)
    items = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", "\n".join(sections), re.M)
    return text, {name: " ".join(description.split()) for name, description in items}


def _normalize(word: str) -> str:
    """A word of a command line, as a flag by its name here."""
    name, equals, value = word.partition("=")
    if not name.startswith("--"):
        return word
    name = name.replace("_", "-")
    return f"{SYNONYMS.get(name, name)}{equals}{value}"


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


@contextmanager
def hinted(arguments: Iterable[Any]) -> Iterator[None]:
    """If a name is unknown, name the modules that the run imported and this command did not.

    They are never imported without being asked for: a file from elsewhere must not choose what code
    runs here.

    Args:
        arguments: of a command; paths among them may be those of runs.

    Raises:
        UsageError: in place of an error that comes from an unknown name.
    """
    try:
        yield
    except TorchcapsError as error:
        if isinstance(error, UnknownNameError) or isinstance(error.__cause__, UnknownNameError):
            for argument in arguments:
                for path in argument if isinstance(argument, list) else [argument]:
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
        raise UsageError(
            one_line(
                f"{error}; {folder} was started with{plugins.flags(missing)}: "
                "give that to this command too, if you trust the module"
            )
        ) from error
