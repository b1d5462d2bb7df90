"""Parsing of a YAML file and a command line into a TrainConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

try:
    import yaml
except ModuleNotFoundError:
    raise ModuleNotFoundError("the trainer needs numpy and PyYAML: pip install numpy PyYAML") from None

from nsa.config import Config, ConfigError, TrainConfig, nearest
from nsa.schema import Field

USAGE = """\
usage: python -m nsa.train [CONFIG] [--KEY VALUE | --KEY=VALUE ...]

Trains the model that CONFIG describes: a YAML file, or one of
  {shipped}
alone or under torchrun. Example:
  torchrun --standalone --nproc-per-node 2 -m nsa.train tiny --parallel.mode ddp --model.layers 4

Keys, with type and default (null switches off, tuples are written a,b):
{keys}"""

# A wheel carries configs/models inside the package; in a checkout they lie beside it.
_CONFIG_DIRECTORIES = (Path(__file__).parent / "configs", Path(__file__).parent.parent / "configs" / "models")


def parse_command_line(arguments: list[str]) -> TrainConfig:
    """The configuration that `[CONFIG] --a.b value --c.d=value ...` asks for."""
    source, overrides, rest = None, [], list(arguments)
    while rest:
        word = rest.pop(0)
        if word.startswith("--"):
            key, equals, text = word[2:].partition("=")
            if not equals:
                text = rest.pop(0) if rest and not rest[0].startswith("--") else _value_of_bare(key)
            overrides.append(f"{key}={text}")
        elif source is None:
            source = word
        else:
            raise ConfigError(f"two configurations, {source!r} and {word!r}", "give one; keys begin with --")
    return load_train_config(source, overrides)


def load_train_config(source: str | Path | None = None, overrides: list[str] | None = None) -> TrainConfig:
    """The configuration in `source` (a YAML file, or the bare name of one that we ship; None: all
    defaults), with overrides such as `model.layers=4` applied in order.
    ConfigError on whatever cannot be used."""
    values = {} if source is None else _read_yaml(find_config(source))
    for override in overrides or []:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"override {override!r} has no value", f"write {key}=VALUE")
        _override(values, key, text)
    return TrainConfig(**{str(key): value for key, value in values.items()})


def find_config(source: str | Path) -> Path:
    """The file that `source` means: the bare name of a shipped configuration, or a path."""
    shipped = shipped_configs()
    if str(source) in shipped:
        return shipped[str(source)]
    if Path(source).is_file():
        return Path(source)
    raise ConfigError(
        f"no configuration {str(source)!r}", f"give a YAML file, or one of {', '.join(shipped)}"
    )


def shipped_configs() -> dict[str, Path]:
    """The configurations that come with the package, by bare name."""
    return {file.stem: file for where in _CONFIG_DIRECTORIES for file in sorted(where.glob("*.yaml"))}


def help_text() -> str:
    """Usage, and every key with its type and default."""
    keys = [
        f"  --{key} {_type_name(field.annotation)}".ljust(72) + _as_typed(field.default)
        for key, field in dotted_keys().items()
    ]
    return USAGE.format(shipped=", ".join(shipped_configs()), keys="\n".join(keys))


def dotted_keys(section: type[Config] = TrainConfig, prefix: str = "") -> dict[str, Field]:
    """Every key of `section`, as in `model.layers`, with annotation and default."""
    keys: dict[str, Field] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.default, Config):
            keys |= dotted_keys(type(field.default), f"{prefix}{name}.")
        else:
            keys[prefix + name] = field
    return keys


def _type_name(annotation: Any) -> str:
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return "|".join(parts)
    if get_origin(annotation) is Annotated:
        return _type_name(parts[0])
    if get_origin(annotation) is tuple:
        return f"{_type_name(parts[0])},..."
    if parts:
        return "|".join(_type_name(part) for part in parts)
    return "null" if annotation is type(None) else annotation.__name__


def _as_typed(value: Any) -> str:
    """A default in the syntax of the command line."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _value_of_bare(key: str) -> str:
    """The value of a key without one: true for a switch; ConfigError for any other key."""
    field = dotted_keys().get(key)
    if field is None or field.annotation is bool:
        return "true"
    raise ConfigError(f"--{key} has no value", f"write --{key} VALUE; its default is {field.default}")


def _override(values: dict[str, Any], key: str, text: str) -> None:
    known = dotted_keys()
    if key not in known:
        raise ConfigError(f"unknown key {key!r}", nearest(key, known))
    *sections, name = key.split(".")
    for section in sections:
        values[section] = values.get(section) or {}
        values = values[section]
        if not isinstance(values, dict):
            raise ConfigError(f"{section} is {values!r}, not keys and values", "see configs/models")
    values[name] = _plain_value(text, is_tuple=str(known[key].annotation).startswith("tuple"))


def _plain_value(text: str, *, is_tuple: bool) -> Any:
    """A value that a configuration can read: null, the items of a tuple, or the text itself."""
    if text.lower() in ("null", "~") and not is_tuple:
        return None
    return [part.strip() for part in text.strip("[]()").split(",") if part.strip()] if is_tuple else text


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}", "fix the file") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__} and values", "see configs/models")
    return values
