"""Values of options from elsewhere than the command line: the environment over `config.toml`, and where each is from.

The file lies in the platform's configuration folder, or in the home that --home or FTNODE_HOME names. It has a section
per command with the names of its options: `[join]`, `max-temp = 80`; `[run.init]` for `ftnode run init`. A variable is
called FTNODE_, the command and the option: FTNODE_JOIN_MAX_TEMP. click does the work (`envvar`, `default_map`); here is
what it leaves out: names that are wrong, and where a bad value stands. Its `auto_envvar_prefix` is not used, since it
goes by parameters' names in Python: 54 of 219 variables would be called FTNODE_STATUS_AS_JSON instead of _JSON.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import click
from platformdirs import user_config_path

from ftnode.node.cli.typed_wrongly import told
from ftnode.node.home.paths import platform_folder, whole_path
from ftnode.protocol.words.errors import UserError

NAME: Final = "config.toml"
PREFIX: Final = "FTNODE_"
HOME: Final = "FTNODE_HOME"
OURS: Final = frozenset(
    {HOME, "FTNODE_LOG", "FTNODE_UPDATE", "FTNODE_SEEDS", "FTNODE_EVERY", "FTNODE_LIES", "FTNODE_NIGHT"}
)
"""Variables that are no option's: the home, what the directory process logs, and those of our tests."""
BYTES_MAX: Final = 256 * 1024
CONFIGURATION: Final = 78
SHOWN_MAX: Final = 60
"""Of a text that is quoted."""
Words = tuple[str, ...]
"""Of a command, as ("run", "init")."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that may not be there: then it says nothing."""

    path: Path
    text: str = ""
    tables: Mapping[str, Any] | None = None

    def section(self, words: Words) -> Mapping[str, Any]:
        """What it says for a command. Raises UserError (78) when that is no table."""
        found: Mapping[str, Any] = self.tables or {}
        for depth, word in enumerate(words, 1):
            inner = found.get(word, {})
            if not isinstance(inner, Mapping):
                place = self.where(words[: depth - 1], word)
                raise UserError(f"{place}: {word} is a command; write [{'.'.join(words[:depth])}]", CONFIGURATION)
            found = inner
        return found

    def where(self, words: Words, key: str) -> str:
        return f"{self.path}, line {line_of(self.text, words, key)}"


def config_path(home: str | None) -> Path:
    """`home`: what --home or FTNODE_HOME says. Raises UserError."""
    if home:
        return whole_path(home) / NAME
    return platform_folder(user_config_path) / NAME


def read_config(path: Path) -> ConfigFile:
    """Raises UserError (78) when it is there and no TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ConfigFile(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; see who owns it", CONFIGURATION) from None
    if len(data) > BYTES_MAX:
        raise UserError(f"{path} has more than {BYTES_MAX} bytes; this is no configuration", CONFIGURATION)
    try:
        text = data.decode("utf-8")
        return ConfigFile(path, text, tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # also no UTF-8, and a number of 5000 digits
        raise UserError(f"{path} is no TOML: {error}; see ftnode config path", CONFIGURATION) from None


def home_among(arguments: Sequence[str], words: Words) -> str | None:
    """What --home says on the command line, the last one as click takes it, else in the environment."""
    typed = None
    for place, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument.startswith("--home="):
            typed = argument.partition("=")[2]
        elif argument == "--home" and place + 1 < len(arguments):
            typed = arguments[place + 1]
    return typed if typed is not None else os.environ.get(variable(words, "home")) or os.environ.get(HOME)


def keys_of(command: click.Command) -> dict[str, click.Option]:
    """Name in the file → option."""
    found = {}
    for parameter in command.params:
        longest = [name for name in parameter.opts if name.startswith("--")]
        if isinstance(parameter, click.Option) and longest:
            found[longest[0].removeprefix("--")] = parameter
    return found


def variable(words: Words, key: str) -> str:
    """`FTNODE_JOIN_MAX_TEMP`."""
    return "_".join(["FTNODE", *words, key]).upper().replace("-", "_")


def prepare(command: click.Command, words: Words, file: ConfigFile) -> None:
    """Let `command` take values from the environment and from `file`. Raises UserError (78) for names that are none of
    its options, and for values that are of no such kind."""
    options = keys_of(command)
    for key, option in options.items():
        own = variable(words, key)
        option.envvar = [own, HOME] if key == "home" else own
    _check_environment(words, options)
    defaults = {}
    for key, value in file.section(words).items():
        if key == "home":
            place = file.where(words, key)
            raise UserError(f"{place}: the home is not chosen here; it is by --home or FTNODE_HOME", CONFIGURATION)
        if key not in options:
            place, command_name = file.where(words, key), " ".join(words)
            near = _nearest(key, options)
            raise UserError(f"{place}: ftnode {command_name} has no option --{key}{near}", CONFIGURATION)
        defaults[str(options[key].name)] = _fitting(options[key], value, file, words, key)
    command.context_settings = {**command.context_settings, "default_map": defaults}


def check_values(command: click.Command, words: Words, file: ConfigFile) -> None:
    """After `prepare`. Raises UserError (78) for a value of the environment or of `file` that its option refuses."""
    context = click.Context(command)
    defaults = command.context_settings.get("default_map") or {}
    for key, option in keys_of(command).items():
        try:
            typed = option.value_from_envvar(context)
            option.type_cast_value(context, defaults.get(str(option.name)) if typed is None else typed)
        except click.BadParameter as error:
            where = variable(words, key) if os.environ.get(variable(words, key)) else file.where(words, key)
            raise UserError(f"in {where}: {told(error)}", CONFIGURATION) from None


def forgo(command: click.Command) -> None:
    """After `prepare`, let `command` take nothing but the home from elsewhere."""
    command.context_settings = {**command.context_settings, "default_map": {}}
    for key, option in keys_of(command).items():
        option.envvar = option.envvar if key == "home" else None


def check_sections(file: ConfigFile, commands: Iterable[Words], group: Words = ()) -> None:
    """Raises UserError (78) for what is in no command's section; below `group` alone."""
    inside = [words for words in commands if words[: len(group)] == group]
    known = dict.fromkeys(words[len(group)] for words in inside)
    groups = {words[len(group)] for words in inside if len(words) > len(group) + 1}
    for name, value in file.section(group).items():
        if name not in known:
            outside = "key of a command" if group else "key outside of a section"
            what = "section" if isinstance(value, Mapping) else outside
            place, near, full = file.where(group, name), _nearest(name, known, group), ".".join((*group, name))
            raise UserError(f"{place}: {full} is no {what} of ours{near}; sections are commands", CONFIGURATION)
        if name in groups:
            check_sections(file, inside, (*group, name))


def named(error: Exception, words: Words, arguments: Sequence[str], command: click.Command, file: ConfigFile) -> str:
    """Where the value stands that an error complains of; empty when it was typed, or is nobody's."""
    options = keys_of(command)
    if isinstance(error, click.BadParameter):
        key = next((key for key, option in options.items() if option is error.param), "")
    else:
        found = re.match(r"--([a-z-]+)", str(error))
        key = found.group(1) if found else ""
    typed = {argument.partition("=")[0] for argument in arguments}
    if key not in options or typed & {*options[key].opts, *options[key].secondary_opts}:
        return ""
    if os.environ.get(variable(words, key)):
        return variable(words, key)
    return file.where(words, key) if key in file.section(words) else ""


def line_of(text: str, words: Words, key: str) -> int:
    """1-based; that of its section when the key has none of its own, else 1."""
    current: Words = ()
    section_line = 1
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        if header:
            current = tuple(part.strip().strip("\"'") for part in header.group(1).split("."))
            if current == (*words, key):
                return number
            section_line = number if current == words else section_line
        elif current == words and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return section_line


def strays(environment: Iterable[str], commands: Iterable[Words]) -> list[str]:
    """Variables that look like ours and are no command's, by their names. Those that begin as one of a command's are
    checked when that runs."""
    prefixes = tuple(variable(words, "") for words in commands)
    return sorted(
        name for name in environment
        if name.startswith(PREFIX) and name not in OURS and not name.startswith(prefixes)
    )  # fmt: skip


def stray_line(name: str, known: Iterable[str]) -> str:
    """What to say of one. `known`: the variables of all commands' options."""
    near = get_close_matches(name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in (*known, *OURS)], 1)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else "ftnode config show lists what there is"
    return f"{name} is no variable of ours and changes nothing; {hint}"


def _check_environment(words: Words, options: Mapping[str, click.Option]) -> None:
    known = {variable(words, key) for key in options}
    prefix = variable(words, "")
    for name in sorted(os.environ):
        if name.startswith(prefix) and name not in known:
            raise UserError(f"{name} is no option of ftnode {' '.join(words)}{_nearest(name, known)}", CONFIGURATION)


def _nearest(name: str, known: Iterable[str], group: Words = ()) -> str:
    near = get_close_matches(name, list(known), 1)
    return f"; did you mean {'.'.join((*group, near[0]))}?" if near else ""


def _fitting(option: click.Option, value: Any, file: ConfigFile, words: Words, key: str) -> Any:
    """What click converts without surprises: it would take true for 1, 2.7 for 2, and a text for a list of letters."""
    yes_or_no = option.is_flag and option.is_bool_flag
    place = file.where(words, key)
    if yes_or_no and not isinstance(value, bool):
        raise UserError(f"{place}: {key} is true or false, not {_shown(value)}", CONFIGURATION)
    if isinstance(value, bool) and not yes_or_no:
        raise UserError(f"{place}: {key} is no yes-or-no, as {_shown(value)} is", CONFIGURATION)
    if not all(_is_plain(each) for each in (value if isinstance(value, list) else [value])):
        raise UserError(f"{place}: {key} is no such kind of value: {_shown(value)}", CONFIGURATION)
    if isinstance(option.type, click.types.IntParamType):
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, float) and not (each.is_integer() and _is_plain(int(each))):
                raise UserError(f"{place}: {key} is a whole number, not {_shown(each)}", CONFIGURATION)
    if option.multiple:
        return value if isinstance(value, list) else [value]
    wants_list = option.nargs != 1 or option.type.is_composite
    if isinstance(value, list) and not wants_list:
        raise UserError(f"{place}: {key} is one value, not {_shown(value)}", CONFIGURATION)
    if wants_list and not isinstance(value, list):
        raise UserError(f"{place}: {key} is a list, not {_shown(value)}", CONFIGURATION)
    return value


def _is_plain(value: Any) -> bool:
    """A value that an option may have by itself. TOML's whole numbers end at 64 bits, tomllib's do not."""
    return isinstance(value, str | float) or (isinstance(value, int) and value.bit_length() <= 64)


def _shown(value: Any) -> str:
    """In an error. Tables and lists may be deeper, and numbers longer, than Python prints."""
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN_MAX else f"{value[:SHOWN_MAX]}…")
    if _is_plain(value) or isinstance(value, date | time):
        return repr(value)
    if isinstance(value, int):
        return "a number of more than 64 bits"
    return "a table" if isinstance(value, Mapping) else "a list"
